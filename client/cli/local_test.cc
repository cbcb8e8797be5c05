// Files and processes on this machine: tokenizing, locks, ports, the supervisor.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/access.h"
#include "client/cli/local_coordinator.h"
#include "client/cli/supervisor.h"
#include "client/cli/tokenize.h"
#include "client/cli/unigram.h"
#include "engine/data/npy.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LocalTest : public ::testing::Test {
 protected:
  LocalTest() {
    std::string name = (fs::temp_directory_path() / "milepost_cli_XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  ~LocalTest() override { fs::remove_all(dir_); }

  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }
  static std::string Text(const std::string& npy) {
    const auto file = data::TokenFile::Open(npy);
    EXPECT_TRUE(file.ok()) << file.status();
    std::vector<int32_t> tokens((*file)->size());
    EXPECT_TRUE((*file)->Read(0, 256, absl::MakeSpan(tokens)).ok());
    return std::string(tokens.begin(), tokens.end());
  }

  // A stand-in for the Python package, whose token of a character is its code point times 100.
  void WritePackage() {
    Write("tokenizers.py", R"(
class Encoding: pass
class Tokenizer:
    @staticmethod
    def from_file(path): return Tokenizer()
    def no_truncation(self): pass
    def no_padding(self): pass
    def get_added_tokens_decoder(self): return {}
    def get_vocab_size(self): return 100000
    def token_to_id(self, name): return 7 if name == "</s>" else None
    def encode(self, text, add_special_tokens):
        encoding = Encoding()
        encoding.ids = [100 * ord(c) for c in text]
        return encoding
    def encode_batch(self, texts, add_special_tokens):
        return [self.encode(text, add_special_tokens) for text in texts]
)");
  }

  fs::path dir_;
};

TEST_F(LocalTest, BytesOfSeveralFilesInOrder) {
  const auto result = TokenizeBytes(
      {.inputs = {Write("a", "one\n"), Write("b", "caf\xc3\xa9")}, .output = Path("out.npy")});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->train_tokens, 9);
  EXPECT_EQ(result->vocabulary, 256);
  EXPECT_EQ(Text(Path("out.npy")), "one\ncaf\xc3\xa9");
}

TEST_F(LocalTest, ValidationBeginsAtALine) {
  std::string text;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, "line ", i, "\n");
  const auto result = TokenizeBytes({.inputs = {Write("a", text)},
                                     .output = Path("train.npy"),
                                     .validation_output = Path("validation.npy"),
                                     .validation_fraction = 0.1});
  ASSERT_TRUE(result.ok()) << result.status();
  const std::string train = Text(Path("train.npy"));
  const std::string validation = Text(Path("validation.npy"));
  EXPECT_EQ(train + validation, text);
  EXPECT_EQ(train.back(), '\n');
  EXPECT_NEAR(static_cast<double>(validation.size()) / text.size(), 0.1, 0.01);
}

TEST_F(LocalTest, WhatIsNotTextLeavesNoFile) {
  const auto result = TokenizeBytes(
      {.inputs = {Write("a", "good\n"), Write("b", "x\ny\xffz")}, .output = Path("out.npy")});
  EXPECT_EQ(result.status(),
            absl::InvalidArgumentError(absl::StrCat(Path("b"), ": not UTF-8 at byte 3 (line 2)")));
  int files = 0;
  for (const auto& entry : fs::directory_iterator(dir_)) files += entry.is_regular_file();
  EXPECT_EQ(files, 2);
  EXPECT_EQ(TokenizeBytes({.inputs = {Path("no")}, .output = Path("o")}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(TokenizeBytes({.inputs = {Write("e", "")}, .output = Path("o")}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(TokenizeBytes({.inputs = {Write("c", "one line")},
                             .output = Path("t.npy"),
                             .validation_output = Path("v.npy"),
                             .validation_fraction = 0.5})
                  .status()
                  .message(),
              HasSubstr("the validation part is empty"));
}

TEST_F(LocalTest, ATokenizerThatCannotBeUsedIsExplained) {
  const auto result = TokenizeHuggingFace({.inputs = {Write("a", "x")}, .output = Path("out.npy")},
                                          Write("tokenizer.json", "{"));
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(),
              ::testing::AnyOf(HasSubstr("pip install tokenizers"),
                               HasSubstr("tokenizer.json: not a tokenizer.json")));
  EXPECT_FALSE(fs::exists(Path("out.npy")));
}

TEST_F(LocalTest, HuggingFaceTokensComeThroughPython) {
  WritePackage();
  setenv("PYTHONPATH", dir_.c_str(), 1);
  std::string text;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, i % 10, "\n");
  const auto result = TokenizeHuggingFace({.inputs = {Write("a", text), Write("b", "x")},
                                           .output = Path("train.npy"),
                                           .validation_output = Path("validation.npy"),
                                           .validation_fraction = 0.25},
                                          "tokenizer.json");
  unsetenv("PYTHONPATH");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->train_tokens, 1502);      // up to the end of the line that holds byte 1500.75
  EXPECT_EQ(result->validation_tokens, 500);  // with the separator
  EXPECT_EQ(result->documents, 2);
  EXPECT_EQ(result->separator, "</s>");
  EXPECT_EQ(result->vocabulary, 100000);
  EXPECT_EQ(result->dtype, "uint32");
  const auto validation = data::TokenFile::Open(Path("validation.npy"));
  std::vector<int32_t> tokens(500);
  ASSERT_TRUE((*validation)->Read(0, 100000, absl::MakeSpan(tokens)).ok());
  EXPECT_EQ(tokens[0], 100 * '1');
  EXPECT_EQ(tokens[498], 7);
  EXPECT_EQ(tokens[499], 100 * 'x');
}

TEST_F(LocalTest, LinesOfJsonAreDocuments) {
  const auto ids = [&](TokenizeJob job) -> absl::StatusOr<std::vector<int32_t>> {
    setenv("PYTHONPATH", dir_.c_str(), 1);
    job.output = Path("out.npy");
    fs::remove(job.output);
    const auto result = TokenizeHuggingFace(job, "tokenizer.json");
    unsetenv("PYTHONPATH");
    if (!result.ok()) return result.status();
    const auto file = data::TokenFile::Open(job.output);
    std::vector<int32_t> tokens((*file)->size());
    EXPECT_TRUE((*file)->Read(0, 100000, absl::MakeSpan(tokens)).ok());
    return tokens;
  };
  const auto fails = [&](TokenizeJob job) { return std::string(ids(job).status().message()); };
  WritePackage();
  const std::string lines = Write("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"bc\"}\n");
  EXPECT_THAT(*ids({.inputs = {lines, Write("b", "d")}}),
              ::testing::ElementsAre(9700, 7, 9800, 9900, 7, 10000));
  const std::string other = Write("c", "{\"body\": \"a\"}\n");
  EXPECT_THAT(*ids({.inputs = {other}, .field = "body"}), ::testing::ElementsAre(9700));
  EXPECT_THAT(fails({.inputs = {lines}, .field = "body"}),
              HasSubstr("a.jsonl:1: has no text 'body' but text"));
  EXPECT_THAT(fails({.inputs = {Write("d.jsonl", "{\"text\": \"a\"}\nplain\n")}}),
              HasSubstr("d.jsonl:2: not JSON"));
  EXPECT_THAT(fails({.inputs = {Write("g.jsonl", R"({"text": "half \ud83d"})")}}),
              HasSubstr("g.jsonl:1: the text is not Unicode"));
  EXPECT_THAT(fails({.inputs = {lines}, .separator = "<none>"}),
              HasSubstr("has no token '<none>'"));
  EXPECT_THAT(fails({.inputs = {Write("e", "\xff\xfe")}}), HasSubstr("e: not UTF-8"));
  EXPECT_THAT(fails({.inputs = {Write("f", "")}}), HasSubstr("the input gave no tokens"));
  for (const auto& entry : fs::directory_iterator(dir_)) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("partial")));
  }
}

TEST_F(LocalTest, ADirectoryOfAnotherUserIsRefused) {
  const std::string own = Write("own", "");
  EXPECT_EQ(CheckOwner(dir_.string(), own), absl::OkStatus());
  EXPECT_EQ(CheckOwner(Path("not there"), own), absl::OkStatus());
  struct stat root = {};
  ASSERT_EQ(stat("/proc/1", &root), 0);
  const std::string other = root.st_uid == geteuid() ? Path("other") : "/proc/1";
  if (root.st_uid == geteuid()) {
    fs::create_directory(other);
    if (geteuid() != 0 || chown(other.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "one user";
  }
  EXPECT_THAT(CheckOwner(other, own).message(), HasSubstr("belongs to"));
}

TEST_F(LocalTest, UnigramLossIsTheCrossEntropy) {
  const auto tokens = [&](const std::string& name, const std::string& text) {
    EXPECT_TRUE(TokenizeBytes({.inputs = {Write("text", text)}, .output = Path(name)}).ok());
    return Path(name);
  };
  // Counts plus one: a 4, b 2, the other 254 symbols 1; 260 together.
  const std::string train = tokens("train.npy", "aaab");
  const std::string validation = tokens("validation.npy", "abz");
  const double expected = -(std::log(4 / 260.0) + std::log(2 / 260.0) + std::log(1 / 260.0)) / 3;
  EXPECT_NEAR(*UnigramLoss(train, validation, 256), expected, 1e-12);
  const double alone = -(3 * std::log(4 / 260.0) + std::log(2 / 260.0)) / 4;
  EXPECT_NEAR(*UnigramLoss(train, "", 256), alone, 1e-12);
  EXPECT_FALSE(UnigramLoss(Path("no.npy"), "", 256).ok());
}

TEST_F(LocalTest, OneRunAtATimeHoldsADataDir) {
  const DataDir dir(dir_.string());
  auto first = RunLock::Acquire(dir, RunLock::Use::kRun, absl::InfinitePast());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = RunLock::Acquire(dir, RunLock::Use::kRun, absl::InfinitePast());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat("process ", getpid())));
  EXPECT_TRUE(RunIsOn(dir));
  *first = RunLock();
  EXPECT_FALSE(RunIsOn(dir));
  EXPECT_TRUE(RunLock::Acquire(dir, RunLock::Use::kRun, absl::InfinitePast()).ok());
}

TEST_F(LocalTest, WhoOnlyReadsIsWaitedFor) {
  const DataDir dir(dir_.string());
  auto reader = RunLock::Acquire(dir, RunLock::Use::kRead, absl::InfinitePast());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_FALSE(RunIsOn(dir));
  for (const auto use : {RunLock::Use::kRun, RunLock::Use::kRead}) {
    const auto second = RunLock::Acquire(dir, use, absl::InfinitePast());
    EXPECT_THAT(second.status().message(), HasSubstr("is being read by another milepost"));
  }
  std::thread run([&] {
    const auto lock = RunLock::Acquire(dir, RunLock::Use::kRun, absl::Now() + absl::Seconds(20));
    EXPECT_TRUE(lock.ok()) << lock.status();
  });
  *reader = RunLock();
  run.join();
}

TEST_F(LocalTest, ChildrenOfADeadRunHoldTheLockUntilTheyEnd) {
  const DataDir dir(dir_.string());
  std::optional<Subprocess> child;
  {
    auto lock = RunLock::Acquire(dir, RunLock::Use::kRun, absl::InfinitePast());
    ASSERT_TRUE(lock.ok());
    SpawnOptions options;
    options.argv = {"/bin/cat"};
    options.in = Redirect::Pipe();
    options.fds = {{3, lock->fd()}};
    child.emplace(*Subprocess::Spawn(std::move(options)));
  }
  std::ofstream(dir.lock()) << "999999999";  // the run itself is dead
  EXPECT_THAT(RunLock::Acquire(dir, RunLock::Use::kRun, absl::InfinitePast()).status().message(),
              HasSubstr("processes of an earlier run"));
  ASSERT_TRUE(child->Signal(SIGKILL).ok());
  EXPECT_TRUE(RunLock::Acquire(dir, RunLock::Use::kRun, absl::Now() + absl::Seconds(20)).ok());
}

// Of a run that was killed the address is still noted: nobody is waited for there.
TEST_F(LocalTest, ARunThatWasKilledIsNotWaitedFor) {
  fs::create_directories(DataDir(dir_.string()).coordinator());
  std::ofstream(DataDir(dir_.string()).address_file()) << "127.0.0.1:1\n";
  GlobalOptions options;
  options.data_dir = dir_.string();
  const auto access = Access::Open(options, WhenStopped::kFail);
  EXPECT_EQ(access.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(access.status().message(), HasSubstr("no run is going on in " + dir_.string()));
  EXPECT_THAT(access.status().message(), HasSubstr("milepost run --job NAME --data-dir"));
  // While one is on, its coordinator is being started again.
  auto lock = RunLock::Acquire(DataDir(dir_.string()), RunLock::Use::kRun, absl::InfinitePast());
  ASSERT_TRUE(lock.ok());
  EXPECT_TRUE(Access::Open(options, WhenStopped::kFail).ok());
}

TEST(HeldPortTest, AServerThatReusesAddressesMayListenAndNobodyElse) {
  const auto port = HeldPort::Take();
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_FALSE(Accepts(port->address()));
  int number = 0;
  ASSERT_EQ(sscanf(port->address().c_str(), "127.0.0.1:%d", &number), 1);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(number);
  auto* generic = reinterpret_cast<sockaddr*>(&name);
  const UniqueFd plain(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(bind(plain.get(), generic, sizeof name), 0);
  for (int restart = 0; restart < 2; ++restart) {
    const UniqueFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    ASSERT_EQ(bind(server.get(), generic, sizeof name), 0);
    ASSERT_EQ(listen(server.get(), 1), 0);
    EXPECT_TRUE(Accepts(port->address()));
  }
}

TEST_F(LocalTest, LogsStayBounded) {
  const std::string log = Write("a.log", std::string(2000, 'x') + "\nlast\n");
  EXPECT_THAT(LastLines(log, 1), ElementsAre("last"));
  BoundLog(log, 4000);
  EXPECT_EQ(fs::file_size(log), 2006u);
  BoundLog(log, 1000);
  EXPECT_EQ(fs::file_size(log), 0u);
  EXPECT_EQ(fs::file_size(log + ".1"), 2006u);
  EXPECT_TRUE(LastLines(Path("none"), 3).empty());
}

// Ticks until the supervisor has something to say.
absl::Status TickUntilEvent(Supervisor* supervisor, std::vector<ProcessEvent>* events) {
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (absl::Now() < give_up) {
    std::vector<pollfd> fds;
    for (const int fd : supervisor->pidfds()) fds.push_back({fd, POLLIN, 0});
    poll(fds.data(), fds.size(), 10);
    const absl::Status status = supervisor->Tick(absl::Now(), events);
    if (!status.ok() || !events->empty()) return status;
  }
  return absl::DeadlineExceededError("nothing happened");
}

TEST_F(LocalTest, WhatAProcessSaidLastIsNotRocksDbs) {
  const std::string log = Path("coordinator.log");
  std::ofstream(log) << "T info coordinator: serving\n"
                        "T error coordinator: the disk of d is full\n"
                        "T warning coordinator: rocksdb: [db/db_impl.cc:42] IO error\n";
  EXPECT_THAT(LastWords(log, 1), ElementsAre("T error coordinator: the disk of d is full"));
  std::ofstream(log) << "T warning coordinator: rocksdb: IO error\n";
  EXPECT_THAT(LastWords(log, 1), ElementsAre("T warning coordinator: rocksdb: IO error"));
}

TEST_F(LocalTest, TheSupervisorRestartsWhatIsKilled) {
  Supervisor supervisor(STDIN_FILENO);
  ASSERT_TRUE(
      supervisor
          .Start({"worker-0", {"/bin/sh", "-c", "echo up; kill -9 $$"}, Path("w.log")}, absl::Now())
          .ok());
  std::vector<ProcessEvent> events;
  ASSERT_TRUE(TickUntilEvent(&supervisor, &events).ok());
  EXPECT_EQ(events[0].name, "worker-0");
  EXPECT_EQ(events[0].end.signal, SIGKILL);
  EXPECT_FALSE(supervisor.AnyAlive("worker"));
  EXPECT_LT(supervisor.NextTime(), absl::InfiniteFuture());
  events.clear();
  ASSERT_TRUE(supervisor.Tick(supervisor.NextTime(), &events).ok());
  EXPECT_TRUE(supervisor.AnyAlive("worker"));
  supervisor.Stop("worker", SIGTERM);
  EXPECT_EQ(supervisor.NextTime(), absl::InfiniteFuture());
}

// A program that has been removed meanwhile, say, as its package was: once it spun for ever.
TEST_F(LocalTest, WhatCannotStartAgainKeepsNoneFromEnding) {
  const std::string program = Write("program", "#!/bin/sh\nrm $0; kill -9 $$\n");
  fs::permissions(program, fs::perms::owner_all);
  Supervisor supervisor(STDIN_FILENO);
  ASSERT_TRUE(supervisor.Start({"coordinator", {program}, Path("c.log")}, absl::Now()).ok());
  ASSERT_TRUE(
      supervisor.Start({"worker-0", {"/bin/sleep", "1000"}, Path("w.log")}, absl::Now()).ok());
  std::vector<ProcessEvent> events;
  ASSERT_TRUE(TickUntilEvent(&supervisor, &events).ok());
  const absl::Status status = supervisor.Tick(supervisor.NextTime(), &events);
  EXPECT_THAT(status.message(), HasSubstr(program));
  supervisor.Stop("worker", SIGTERM);
  EXPECT_EQ(supervisor.NextTime(), absl::InfiniteFuture()) << "an error is final";
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (supervisor.AnyAlive("worker") && absl::Now() < give_up) {
    pollfd fd = {supervisor.pidfds()[0], POLLIN, 0};
    poll(&fd, 1, 1000);
    EXPECT_TRUE(supervisor.Tick(absl::Now(), &events).ok());
  }
  EXPECT_FALSE(supervisor.AnyAlive("worker"));
}

TEST_F(LocalTest, ArgumentsOfTheFirstStartAreOfThatAlone) {
  Supervisor supervisor(STDIN_FILENO);
  ASSERT_TRUE(supervisor
                  .Start({"coordinator",
                          {"/bin/sh", "-c", "echo started $*; kill -9 $$", "sh", "always"},
                          Path("c.log"),
                          SIGKILL,
                          {"first"}},
                         absl::Now())
                  .ok());
  std::vector<ProcessEvent> events;
  ASSERT_TRUE(TickUntilEvent(&supervisor, &events).ok());
  ASSERT_TRUE(supervisor.Tick(supervisor.NextTime(), &events).ok());
  events.clear();
  ASSERT_TRUE(TickUntilEvent(&supervisor, &events).ok());
  EXPECT_THAT(LastLines(Path("c.log"), 2),
              testing::ElementsAre("started always first", "started always"));
}

TEST_F(LocalTest, TheSupervisorQuotesTheLogOfWhatCannotStart) {
  Supervisor supervisor(STDIN_FILENO);
  ASSERT_TRUE(
      supervisor
          .Start({"coordinator", {"/bin/sh", "-c", "echo bad data dir; exit 1"}, Path("c.log")},
                 absl::Now())
          .ok());
  std::vector<ProcessEvent> events;
  const absl::Status status = TickUntilEvent(&supervisor, &events);
  EXPECT_THAT(status.message(), HasSubstr("coordinator ended with exit code 1"));
  EXPECT_THAT(status.message(), HasSubstr("bad data dir"));
  EXPECT_FALSE(supervisor.Start({"x", {"/no/such/binary"}, Path("x.log")}, absl::Now()).ok());
}

TEST(FullNameTest, AddsTheCollectionOnce) {
  EXPECT_EQ(FullName("checkpoints", "4"), "checkpoints/4");
  EXPECT_EQ(FullName("checkpoints", "checkpoints/4"), "checkpoints/4");
}

}  // namespace
}  // namespace milepost::client
