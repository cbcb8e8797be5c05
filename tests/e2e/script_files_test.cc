// Scripts whose files are sent along, by the command line, on real workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/subprocess.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

class ScriptFilesTest : public testing::Test {
 protected:
  ScriptFilesTest() {
    for (const char* name : {"/tmp", "/mine/sub", "/shared"})
      fs::create_directories(folder_ + name);
  }
  ~ScriptFilesTest() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string TextOf(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void AwaitFile(const std::string& name) const {
    const absl::Time give_up = absl::Now() + absl::Minutes(2);
    while (!fs::exists(folder_ + "/" + name)) {
      ASSERT_LT(absl::Now(), give_up) << name << " was never written";
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  // What a user has, beside a spec whose script runs `shell` in it.
  void WriteMine(const std::string& shell, int ranks) const {
    Write("mine/run.sh", "#!/bin/sh\n" + shell);
    fs::permissions(folder_ + "/mine/run.sh", fs::perms::owner_all);
    Write("mine/sub/data.txt", "what was sent\n");
    Write("mine/secret.key", "stays here\n");
    Write("mine/.gitignore", "*.key\n");
    Write("mine/job.yaml",
          absl::StrCat("name: mine\nscript:\n  command: [./run.sh]\n  files: .\n  environment: ",
                       "{SHARED: ", folder_, "/shared}\nresources: {ranks: ", ranks,
                       "}\nrestart: {backoff_seconds: 0}\n"));
  }

  struct Ran {
    int exit_code = -1;
    std::string out;
    std::string err;
  };
  Ran Milepost(const Cluster& cluster, std::vector<std::string> argv) const {
    argv.insert(argv.end(), {"--coordinator", cluster.address()});
    return Milepost(std::move(argv));
  }
  Ran Milepost(std::vector<std::string> argv) const {
    const char* bin = std::getenv("MILEPOST_BIN_DIR");
    argv.insert(argv.begin(),
                bin == nullptr ? SiblingBinary("milepost") : absl::StrCat(bin, "/milepost"));
    SpawnOptions options;
    options.argv = std::move(argv);
    options.env = {{"HOME", folder_}, {"XDG_CONFIG_HOME", ""}, {"TMPDIR", folder_ + "/tmp"}};
    options.out = Redirect::File(folder_ + "/cli.out");
    options.err = Redirect::File(folder_ + "/cli.err");
    fs::remove(folder_ + "/cli.out");
    fs::remove(folder_ + "/cli.err");
    auto process = Subprocess::Spawn(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    const auto end = process->Wait(absl::Now() + absl::Seconds(60));
    EXPECT_TRUE(end.ok()) << end.status();
    return {end.ok() ? end->exit_code : -1, TextOf("cli.out"), TextOf("cli.err")};
  }
  std::string Submitted(const Cluster& cluster) const {
    const Ran ran = Milepost(cluster, {"job", "submit", "-o", "name", folder_ + "/mine/job.yaml"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return ran.out.substr(0, ran.out.find('\n'));
  }
  static std::string LogText(Cluster& cluster, const std::string& job) {
    std::string text;
    for (const v1::LogLine& line : cluster.Logs(job)) absl::StrAppend(&text, line.text(), "\n");
    return text;
  }
  // Of workers: what they have fetched.
  std::vector<fs::path> Cached() const {
    std::vector<fs::path> archives;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ + "/tmp")) {
      if (entry.path().filename().string().size() == 64) archives.push_back(entry.path());
    }
    return archives;
  }
  std::vector<fs::path> Stored() const {
    std::vector<fs::path> archives;
    for (const auto& entry : fs::directory_iterator(folder_ + "/coordinator/files")) {
      if (entry.is_regular_file()) archives.push_back(entry.path());
    }
    return archives;
  }
  ClusterOptions Options(int workers) const {
    return {.workers = workers,
            .slots = 1,
            .env = {{"TMPDIR", folder_ + "/tmp"}},
            .worker_flags = {"--allow-scripts"}};
  }

  const std::string folder_ = MakeFolder("milepost_files");
};

TEST_F(ScriptFilesTest, TwoRanksRunInThemAlsoAfterTheCoordinatorRestarts) {
  WriteMine(
      "cat sub/data.txt\n"
      "[ ! -e secret.key ] && [ ! -w sub/data.txt -o $(id -u) = 0 ] || exit 9\n"
      "echo attempt $MILEPOST_ATTEMPT of rank $RANK in $(pwd) > $MILEPOST_SCRATCH/note || exit 8\n"
      "cp sub/data.txt $SHARED/data.$RANK && cat $MILEPOST_SCRATCH/note\n"
      "[ $MILEPOST_ATTEMPT = 1 ] || exit 0\n"
      "touch $SHARED/at.$RANK\n"
      "while [ ! -e $SHARED/go ]; do sleep 0.02; done\n"
      "[ $RANK = 0 ] || exit 7\n"
      "exec sleep 1000\n",
      /*ranks=*/2);
  Cluster cluster(folder_, Options(/*workers=*/2));
  cluster.Start();
  const std::string job = Submitted(cluster);
  AwaitFile("shared/at.0");
  AwaitFile("shared/at.1");
  for (const char* name : {"shared/data.0", "shared/data.1"}) {
    EXPECT_EQ(TextOf(name), "what was sent\n");
  }
  EXPECT_EQ(Cached().size(), 1U) << "both are of one host";
  cluster.KillCoordinator();
  cluster.StartCoordinator();
  // The next attempt has what was sent, from the coordinator.
  fs::remove_all(folder_ + "/mine/sub");
  fs::remove(Cached()[0]);
  Write("shared/go", "now");
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.attempts(), 2);
  EXPECT_THAT(end.first_failure().message(), HasSubstr("the script ended: exit code 7"));
  const std::string log = LogText(cluster, job);
  for (const char* line : {"attempt 2 of rank 0", "attempt 2 of rank 1", "what was sent"}) {
    EXPECT_THAT(log, HasSubstr(line));
  }
  for (const auto& entry : fs::directory_iterator(folder_ + "/tmp")) {
    EXPECT_THAT(entry.path().string(), HasSubstr("milepost-files-")) << "the rest has gone";
  }
}

TEST_F(ScriptFilesTest, WhatIsThereIsNotSentAgain) {
  WriteMine("cat sub/data.txt\n", /*ranks=*/1);
  Cluster cluster(folder_, Options(/*workers=*/1));
  cluster.Start();
  const Ran first = Milepost(cluster, {"job", "submit", folder_ + "/mine/job.yaml"});
  EXPECT_THAT(first.err, HasSubstr("sent 4 files of " + folder_ + "/mine"));
  const Ran again = Milepost(cluster, {"job", "submit", folder_ + "/mine/job.yaml"});
  EXPECT_THAT(again.err, HasSubstr("the coordinator has the 4 files of "));
  EXPECT_EQ(Stored().size(), 1U);
  // A fork, and the spec as it is stored.
  Write("mine/sub/data.txt", "another text\n");
  const Ran checked =
      Milepost(cluster, {"job", "submit", "--validate-only", folder_ + "/mine/job.yaml"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_EQ(Stored().size(), 1U) << "what is only checked is not sent";
  const std::string job = Submitted(cluster);
  EXPECT_EQ(Stored().size(), 2U);
  EXPECT_EQ(cluster.Await(job, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(LogText(cluster, job), HasSubstr("another text"));
}

TEST_F(ScriptFilesTest, DamageEndsTheJobAndSaysSo) {
  WriteMine("cat sub/data.txt\n", /*ranks=*/1);
  Cluster cluster(folder_, Options(/*workers=*/1));
  cluster.Start();
  EXPECT_EQ(cluster.Await(Submitted(cluster), IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
  // On the host it is fetched again.
  std::ofstream(Cached()[0]) << "what somebody else has written";
  const std::string mended = Submitted(cluster);
  EXPECT_EQ(cluster.Await(mended, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(LogText(cluster, mended), HasSubstr("what was sent"));
  fs::remove(Cached()[0]);
  std::fstream(Stored()[0], std::ios::in | std::ios::out) << "what a disk has made of it";
  const v1::Job end = cluster.Await(Submitted(cluster), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(end.attempts(), 1) << "trying again would not help";
  EXPECT_EQ(end.first_failure().class_(), v1::FAILURE_CLASS_USER);
  EXPECT_THAT(
      end.first_failure().message(),
      AllOf(HasSubstr("are damaged on the coordinator's disk"), HasSubstr("submit the job again")));
  // Which helps.
  EXPECT_EQ(cluster.Await(Submitted(cluster), IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ScriptFilesTest, AForkMayHaveOtherFiles) {
  WriteMine(R"(exec python3 - <<'END'
import milepost
start = milepost.checkpoint.load()
step = start.step if start else 0
print(f'after step {step}:', open('sub/data.txt').read())
milepost.checkpoint.save({'x': step}, step + 1)
END
)",
            /*ranks=*/1);
  Cluster cluster(folder_, Options(/*workers=*/1));
  cluster.Start();
  const std::string job = Submitted(cluster);
  EXPECT_EQ(cluster.Await(job, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
  Write("mine/sub/data.txt", "another text\n");
  const auto fork = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"job", "fork", "-o", "name", "--from", job});
    const Ran ran = Milepost(cluster, flags);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const std::string name = ran.out.substr(0, ran.out.find('\n'));
    EXPECT_EQ(cluster.Await(name, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
    return LogText(cluster, name);
  };
  EXPECT_THAT(fork({}), HasSubstr("after step 1: what was sent"));
  EXPECT_THAT(fork({"--set", "script.files=" + folder_ + "/mine"}),
              HasSubstr("after step 1: another text"));
}

// On this machine, with the folder that the run itself writes to in the one that is sent.
TEST_F(ScriptFilesTest, ARunSendsThemToItsOwnCoordinator) {
  WriteMine("cat sub/data.txt\n", /*ranks=*/2);
  const std::string data_dir = folder_ + "/mine/.milepost";
  const auto run = [&] {
    return Milepost({"run", "--data-dir", data_dir, folder_ + "/mine/job.yaml"});
  };
  const Ran first = run();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out + first.err, AllOf(HasSubstr("sent 4 files"), HasSubstr("what was sent")));
  const Ran again = run();
  EXPECT_THAT(again.err, HasSubstr("the coordinator has the 4 files of "))
      << "what the run itself writes is not sent";
  Write("mine/sub/data.txt", "another text\n");
  const Ran other = run();
  EXPECT_THAT(other.out + other.err, AllOf(HasSubstr("sent 4 files"), HasSubstr("another text")));
}

TEST_F(ScriptFilesTest, WhatCannotBeSentIsRefusedBeforeAnythingIsSubmitted) {
  WriteMine("true\n", /*ranks=*/1);
  fs::create_symlink("/etc/passwd", folder_ + "/mine/passwords");
  Cluster cluster(folder_, Options(/*workers=*/0));
  cluster.Start();
  const Ran ran = Milepost(cluster, {"job", "submit", folder_ + "/mine/job.yaml"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("job.yaml:4: script.files: "),
                             HasSubstr("/passwords cannot be sent: it is a link to an absolute"),
                             HasSubstr(".milepostignore")));
  EXPECT_TRUE(Stored().empty());
}

}  // namespace
}  // namespace milepost::e2e
