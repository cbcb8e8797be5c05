// `milepost run` as a user has it: its job, the jobs beside it, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/tokenizer_stand_ins.h"
#include "common/exit_codes.h"
#include "common/spec/to_yaml.h"
#include "common/subprocess.h"
#include "engine/data/npy.h"
#include "engine/data/token_file.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(120);

class RunTest : public testing::Test {
 protected:
  ~RunTest() override {
    running_.reset();
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }

  struct Ran {
    int exit_code = -1;
    std::string out;
    std::string err;
  };
  static std::string TextOf(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  SpawnOptions Command(std::vector<std::string> argv, const std::string& name) const {
    SpawnOptions options;
    argv.insert(argv.begin(), SiblingBinary("milepost"));
    if (const char* bin = std::getenv("MILEPOST_BIN_DIR")) argv[0] = std::string(bin) + "/milepost";
    argv.insert(argv.end(), {"--data-dir", Path("data")});
    options.argv = std::move(argv);
    options.env = {{"HOME", folder_}, {"XDG_CONFIG_HOME", ""}, {"MILEPOST_COORDINATOR", ""}};
    options.out = Redirect::File(Path(name + ".out"));
    options.err = Redirect::File(Path(name + ".err"));
    return options;
  }
  // A command to its end.
  Ran Milepost(std::vector<std::string> argv) const {
    for (const char* file : {"cli.out", "cli.err"}) std::filesystem::remove(Path(file));
    auto process = Subprocess::Spawn(Command(std::move(argv), "cli"));
    EXPECT_TRUE(process.ok()) << process.status();
    const auto end = process->Wait(absl::Now() + kPatience);
    EXPECT_TRUE(end.ok()) << end.status();
    return {end.ok() ? end->exit_code : -1, TextOf(Path("cli.out")), TextOf(Path("cli.err"))};
  }
  // A run that goes on beside the test; its output in run.out and run.err.
  void Begin(std::vector<std::string> argv, Redirect out = Redirect::File("")) {
    SpawnOptions options = Command(std::move(argv), "run");
    if (out.kind != Redirect::kFile) options.out = out;
    auto process = Subprocess::Spawn(std::move(options));
    ASSERT_TRUE(process.ok()) << process.status();
    running_.emplace(*std::move(process));
  }
  int AwaitEnd() {
    const auto end = running_->Wait(absl::Now() + kPatience);
    EXPECT_TRUE(end.ok()) << end.status() << TextOf(Path("run.out")) << TextOf(Path("run.err"));
    return end.ok() ? end->exit_code : -1;
  }
  // Until a command's output on stdout has `text`.
  void Until(const std::vector<std::string>& argv, const std::string& text) {
    const absl::Time give_up = absl::Now() + kPatience;
    Ran ran;
    while (absl::Now() < give_up) {
      ran = Milepost(argv);
      if (ran.out.find(text) != std::string::npos) return;
      absl::SleepFor(absl::Milliseconds(20));
    }
    FAIL() << text << " never came: " << ran.out << ran.err << TextOf(Path("run.out"))
           << TextOf(Path("run.err"));
  }

  std::string Write(const std::string& name, const v1::JobSpec& spec) const {
    std::ofstream(Path(name)) << MessageToYaml(spec);
    return Path(name);
  }
  static v1::JobSpec WithRate(v1::JobSpec spec, double rate) {
    spec.mutable_train()->mutable_optimizer()->set_lr(rate);
    return spec;
  }

  const std::string folder_ = MakeFolder("milepost_run");
  std::optional<Subprocess> running_;
};

TEST_F(RunTest, AScriptsOutputIsShownAndOneThatIsInterruptedGoesOn) {
  v1::JobSpec spec;
  spec.set_name("script");
  for (const char* part :
       {"sh", "-c",
        "echo hello from $RANK; [ $MILEPOST_JOB/$MILEPOST_ATTEMPT = jobs/1/1 ] || exit 0; "
        "trap 'touch saved; exit 0' TERM; touch ready; while :; do sleep 0.01; done"}) {
    spec.mutable_script()->add_command(part);
  }
  spec.mutable_script()->set_folder(folder_);
  const std::string path = Write("script.yaml", spec);
  Begin({"run", path});
  const absl::Time give_up = absl::Now() + kPatience;
  while (!std::filesystem::exists(Path("ready")) && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  ASSERT_TRUE(running_->Signal(SIGINT).ok());
  EXPECT_EQ(AwaitEnd(), kExitInterrupted) << TextOf(Path("run.err"));
  EXPECT_THAT(TextOf(Path("run.out")), HasSubstr("rank 0 | hello from 0"));
  EXPECT_TRUE(std::filesystem::exists(Path("saved")));
  const Ran again = Milepost({"run", path});
  EXPECT_EQ(again.exit_code, kExitOk) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr("continuing jobs/1"), HasSubstr("rank 0 | hello from 0"),
                               HasSubstr("jobs/1 SUCCEEDED")));
  // It has ended well: once more is a job of its own.
  EXPECT_THAT(Milepost({"run", path}).out, HasSubstr("started jobs/2"));
}

TEST_F(RunTest, FreshBeginsASpecAnewAndLeavesAllElse) {
  const std::string a = Write("a.yaml", SmallJob(folder_, 20));
  const std::string b = Write("b.yaml", WithRate(SmallJob(folder_, 20), 1e-3));
  ASSERT_EQ(Milepost({"run", a}).exit_code, kExitOk);
  ASSERT_EQ(Milepost({"run", b}).exit_code, kExitOk);
  const auto list = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"checkpoint", "list", "-o", "name"});
    return Milepost(flags).out;
  };
  ASSERT_EQ(list({}), "checkpoints/4\ncheckpoints/3\ncheckpoints/2\ncheckpoints/1\n");

  // Not over what somebody wants to keep.
  ASSERT_EQ(Milepost({"checkpoint", "pin", "checkpoints/1", "checkpoints/3"}).exit_code, kExitOk);
  const Ran refused = Milepost({"run", a, "--fresh"});
  EXPECT_NE(refused.exit_code, kExitOk);
  EXPECT_THAT(refused.err, HasSubstr("checkpoints/1 is pinned"));
  EXPECT_EQ(Milepost({"job", "list", "-o", "name"}).out, "jobs/2\njobs/1\n");
  ASSERT_EQ(Milepost({"checkpoint", "unpin", "checkpoints/1"}).exit_code, kExitOk);

  const Ran fresh = Milepost({"run", a, "--fresh"});
  EXPECT_EQ(fresh.exit_code, kExitOk) << fresh.err;
  EXPECT_THAT(fresh.out, HasSubstr("started jobs/3"));
  EXPECT_THAT(fresh.err, HasSubstr("--fresh: a new job from new parameters; jobs/1 of this spec "
                                   "stays, and 2 checkpoints"));
  EXPECT_THAT(list({}), testing::EndsWith("checkpoints/4\ncheckpoints/3\n"));
  EXPECT_EQ(list({"--deleted"}), "checkpoints/2\ncheckpoints/1\n");
  EXPECT_EQ(Milepost({"job", "list", "-o", "name"}).out, "jobs/3\njobs/2\njobs/1\n");
  // The new one is the spec's now; the old one's can be had back, or go for good.
  EXPECT_THAT(Milepost({"run", a}).out, HasSubstr("already finished jobs/3"));
  EXPECT_EQ(Milepost({"checkpoint", "restore", "checkpoints/2"}).exit_code, kExitOk);
  EXPECT_EQ(Milepost({"checkpoint", "verify", "checkpoints/2"}).exit_code, kExitOk);
  EXPECT_EQ(Milepost({"checkpoint", "purge", "checkpoints/1"}).exit_code, kExitOk);
  EXPECT_EQ(list({"--deleted"}), "");
  // And whole jobs, several at once.
  ASSERT_NE(Milepost({"job", "delete", "2"}).exit_code, kExitOk);  // checkpoints/3 is pinned
  ASSERT_EQ(Milepost({"job", "delete", "1", "jobs/3"}).exit_code, kExitOk);
  EXPECT_EQ(Milepost({"job", "list", "-o", "name"}).out, "jobs/2\n");
  EXPECT_EQ(list({}), "checkpoints/4\ncheckpoints/3\n");
}

TEST_F(RunTest, CurvesStayWhenItIsOver) {
  const std::string a = Write("a.yaml", SmallJob(folder_, 20));
  const std::string b = Write("b.yaml", WithRate(SmallJob(folder_, 20), 1e-3));
  ASSERT_EQ(Milepost({"run", a}).exit_code, kExitOk);
  ASSERT_EQ(Milepost({"run", b}).exit_code, kExitOk);
  const Ran table = Milepost({"job", "curves", "1"});
  EXPECT_EQ(table.exit_code, kExitOk) << table.err;
  EXPECT_THAT(table.out, testing::StartsWith("STEP  TRAIN_LOSS  "));
  EXPECT_THAT(table.out, AllOf(HasSubstr("GRAD_NORM"), HasSubstr("\n20 ")));
  const Ran plot = Milepost({"job", "curves", "1", "2", "--plot"});
  EXPECT_EQ(plot.exit_code, kExitOk) << plot.err;
  EXPECT_THAT(plot.out, testing::StartsWith("train_loss, nats\n"));
  EXPECT_THAT(plot.out, AllOf(HasSubstr("\na  jobs/1\n"), HasSubstr("\nb  jobs/2\n")));
  EXPECT_THAT(Milepost({"job", "curves", "2", "-o", "json"}).out,
              AllOf(HasSubstr("\"name\": \"lr\""), HasSubstr(" 20\n")));
  const Ran unknown = Milepost({"job", "curves", "1", "--curve", "train_los"});
  EXPECT_NE(unknown.exit_code, kExitOk);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'train_loss'?"));
}

TEST_F(RunTest, FreshEndsAnUnfinishedJobFirst) {
  const std::string a = Write("a.yaml", SmallJob(folder_, 300));
  Begin({"run", a});
  Until({"checkpoint", "list", "-o", "name"}, "checkpoints/2");
  ASSERT_TRUE(running_->Signal(SIGKILL).ok());
  ASSERT_TRUE(running_->Wait(absl::Now() + kPatience).ok());
  const Ran fresh = Milepost({"run", a, "--fresh"});
  EXPECT_EQ(fresh.exit_code, kExitOk) << fresh.err;
  EXPECT_THAT(fresh.err, AllOf(HasSubstr("jobs/1 (now cancelled) of this spec stays"),
                               Not(HasSubstr("that others need"))));
  const Ran kept = Milepost({"checkpoint", "list", "--job", "jobs/1", "-o", "name"});
  EXPECT_EQ(kept.out, "") << kept.err;
}

TEST_F(RunTest, WhatIsQueuedBesideItRunsToo) {
  v1::JobSpec spec = SmallJob(folder_, 400);
  spec.mutable_report()->set_tensorboard(Path("curves"));
  v1::JobSpec wide = WithRate(SmallJob(folder_, 5), 2e-3);
  wide.mutable_resources()->set_ranks(4);
  wide.mutable_train()->mutable_batch()->set_micro(2);
  wide.mutable_train()->mutable_batch()->set_accumulation(1);
  Begin({"run", Write("a.yaml", spec)});
  Until({"checkpoint", "list", "-o", "name"}, "checkpoints/");
  Ran ran = Milepost({"job", "fork", "--from", "checkpoints/1", "--set", "train.steps=30"});
  ASSERT_EQ(ran.exit_code, kExitOk) << ran.err;
  ASSERT_EQ(Milepost({"job", "submit", Write("wide.yaml", wide)}).exit_code, kExitOk);
  EXPECT_EQ(AwaitEnd(), kExitOk) << TextOf(Path("run.err"));
  EXPECT_THAT(TextOf(Path("run.out")), AllOf(HasSubstr("jobs/1 SUCCEEDED at step 400/400"),
                                             HasSubstr("going on with jobs/2"),
                                             HasSubstr("jobs/2 SUCCEEDED at step 30/30")));
  // What cannot run here is told, and how to run it.
  EXPECT_THAT(TextOf(Path("run.err")),
              HasSubstr("jobs/3 (needs 4 slots, and there are 2) waits; to run: milepost run --job "
                        "jobs/3"));
  // Each has a curve of its own.
  EXPECT_TRUE(std::filesystem::is_directory(Path("curves/jobs-1")));
  EXPECT_TRUE(std::filesystem::is_directory(Path("curves/jobs-2")));

  ran = Milepost({"run", "--job", "3"});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("jobs/3 SUCCEEDED at step 5/5"));
}

TEST_F(RunTest, OutputThatNobodyReadsStopsItInOrder) {
  Begin({"run", Write("a.yaml", SmallJob(folder_, 1'000'000))}, Redirect::Pipe());
  {
    const UniqueFd out = running_->TakeOut();
    char first[64];
    ASSERT_GT(read(out.get(), first, sizeof first), 0);
    Until({"job", "list"}, "RUNNING");
  }
  EXPECT_EQ(AwaitEnd(), kExitInterrupted);
  EXPECT_THAT(TextOf(Path("run.err")),
              AllOf(HasSubstr("nobody reads the output any more"), HasSubstr("resume: milepost")));
  EXPECT_THAT(Milepost({"checkpoint", "list", "-o", "name"}).out, HasSubstr("checkpoints/"));
  const Ran list = Milepost({"job", "list"});
  EXPECT_THAT(list.out, AllOf(HasSubstr("QUEUED"), Not(HasSubstr("RUNNING"))));
}

TEST_F(RunTest, OneWhoseJobIsSuspendedEndsAndSaysHowToGoOn) {
  Begin({"run", Write("a.yaml", SmallJob(folder_, 1'000'000))});
  Until({"job", "list"}, "RUNNING");
  ASSERT_EQ(Milepost({"job", "suspend", "1"}).exit_code, kExitOk);
  EXPECT_EQ(AwaitEnd(), kExitJobNotFinished);
  EXPECT_THAT(TextOf(Path("run.out")), HasSubstr("jobs/1 SUSPENDED"));
  EXPECT_THAT(TextOf(Path("run.err")), HasSubstr("resume: milepost run "));
}

TEST_F(RunTest, OneThatWasKilledIsToldAsNotRunning) {
  Begin({"run", Write("a.yaml", SmallJob(folder_, 1'000'000))});
  Until({"checkpoint", "list", "-o", "name"}, "checkpoints/");
  // A name that is wrong is told before any job is waited for.
  EXPECT_EQ(Milepost({"job", "wait", "1", "nosuch", "--timeout", "20s"}).exit_code, kExitNotFound);
  EXPECT_EQ(Milepost({"job", "cancel", "1", "nosuch"}).exit_code, kExitNotFound);
  ASSERT_TRUE(running_->Signal(SIGKILL).ok());
  ASSERT_TRUE(running_->Wait(absl::Now() + kPatience).ok());

  const Ran list = Milepost({"job", "list"});
  EXPECT_THAT(list.out, Not(HasSubstr("RUNNING"))) << list.err;
  EXPECT_THAT(list.err, AllOf(HasSubstr("no run is going on in"), HasSubstr("last seen at step"),
                              HasSubstr("milepost run --job jobs/1")));
  EXPECT_THAT(Milepost({"job", "describe", "1"}).out, HasSubstr("not running; last seen at step"));
  EXPECT_EQ(Milepost({"job", "wait", "1"}).exit_code, kExitJobNotFinished);
  // Nobody has started a coordinator, and its port says nothing.
  EXPECT_THAT(Milepost({"job", "describe", "9"}).err,
              AllOf(HasSubstr("the coordinator of " + Path("data") + ": there is no job"),
                    Not(HasSubstr("127.0.0.1"))));
  EXPECT_THAT(Milepost({"worker", "list"}).err, Not(HasSubstr("127.0.0.1")));
  EXPECT_THAT(Milepost({"job", "list", "--project", "nosuch"}).err,
              AllOf(HasSubstr("project nosuch has no job"), Not(HasSubstr("no jobs yet"))));
  const Ran fork =
      Milepost({"job", "fork", "--from", "jobs/1", "--set", "train.optimizer.lr=1e-4"});
  EXPECT_EQ(fork.exit_code, kExitOk) << fork.err;
  EXPECT_THAT(fork.err, HasSubstr("so it waits: milepost run --job jobs/2"));
  const Ran cancelled = Milepost({"job", "cancel", "jobs/1", "jobs/2"});
  EXPECT_EQ(cancelled.exit_code, kExitOk) << cancelled.err;
  EXPECT_EQ(cancelled.out, "jobs/1\njobs/2\n");
}

// With the disk of a mount namespace of its own, where that may be made.
TEST_F(RunTest, ADiskThatHoldsNoCheckpointIsToldAtOnce) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  std::filesystem::create_directories(Path("data"));
  SpawnOptions options = Command({"run", Write("a.yaml", SmallJob(folder_, 20))}, "run");
  const std::vector<std::string> mount = {
      "/usr/bin/unshare",
      "--mount",
      "/bin/sh",
      "-c",
      R"(mount -t tmpfs -o size=60m tmpfs "$0" || exit 99; exec "$@")",
      Path("data")};
  options.argv.insert(options.argv.begin(), mount.begin(), mount.end());
  auto process = Subprocess::Spawn(std::move(options));
  ASSERT_TRUE(process.ok()) << process.status();
  const auto end = process->Wait(absl::Now() + kPatience);
  ASSERT_TRUE(end.ok()) << end.status();
  const std::string err = TextOf(Path("run.err"));
  if (end->exit_code == 99 || err.find("unshare") != std::string::npos) GTEST_SKIP() << err;
  EXPECT_EQ(end->exit_code, kExitError) << err;
  EXPECT_THAT(err, AllOf(HasSubstr("no checkpoint of this job would fit: one takes"),
                         HasSubstr("64.0 MiB are kept back"), HasSubstr("--data-dir")));
  EXPECT_THAT(TextOf(Path("run.out")), Not(HasSubstr("RUNNING")));
}

TEST_F(RunTest, OneThatIsKilledIsNoFailureOfItsJob) {
  v1::JobSpec spec = SmallJob(folder_, 1'000'000);
  spec.mutable_checkpoint()->set_every(1'000'000);  // so that nothing is progress
  const int most = 1;
  spec.mutable_restart()->set_max_failures(most);
  const std::string path = Write("a.yaml", spec);
  for (int i = 0; i <= most; ++i) {
    Begin({"run", path});
    // The store may still say RUNNING of the attempt before.
    Until({"job", "describe", "1", "-o", "json"}, absl::StrCat("\"attempts\": ", i + 1));
    Until({"job", "list"}, "RUNNING");
    ASSERT_TRUE(running_->Signal(SIGKILL).ok());
    ASSERT_TRUE(running_->Wait(absl::Now() + kPatience).ok());
    // Also who only looks at what it has left finds it so.
    const Ran job = Milepost({"job", "describe", "1", "-o", "json"});
    EXPECT_THAT(job.out, AllOf(HasSubstr("QUEUED"), HasSubstr("\"failures\": 0"))) << job.err;
  }
}

TEST_F(RunTest, AJobGoesOnWithItsOwnDataAlone) {
  const std::string spec = Write("a.yaml", SmallJob(folder_, 1'000'000));
  const auto run_to_a_checkpoint = [&](const std::vector<std::string>& argv) {
    Begin(argv);
    Until({"checkpoint", "list", "-o", "name"}, "checkpoints/");
    Until({"job", "list"}, "RUNNING");
    ASSERT_TRUE(running_->Signal(SIGINT).ok());
    AwaitEnd();
  };
  run_to_a_checkpoint({"run", spec});
  std::filesystem::rename(Path("train.npy"), Path("before.npy"));
  std::filesystem::copy_file(Path("validation.npy"), Path("train.npy"));
  const Ran other = Milepost({"run", spec});
  EXPECT_EQ(other.exit_code, kExitJobFailed) << other.out;
  EXPECT_THAT(other.err, AllOf(HasSubstr("the training data are not those of step"),
                               HasSubstr("milepost job fork --from jobs/1")));
  EXPECT_THAT(Milepost({"job", "describe", "1", "-o", "json"}).out, HasSubstr("\"USER\""));

  ASSERT_EQ(Milepost({"job", "fork", "--from", "jobs/1"}).exit_code, kExitOk);
  run_to_a_checkpoint({"run", "--job", "jobs/2"});
  EXPECT_THAT(TextOf(Path("run.out")), HasSubstr("jobs/2 RUNNING")) << TextOf(Path("run.err"));

  std::filesystem::rename(Path("before.npy"), Path("train.npy"));
  run_to_a_checkpoint({"run", spec});
  EXPECT_THAT(TextOf(Path("run.out")), HasSubstr("jobs/1 RUNNING")) << TextOf(Path("run.err"));
}

TEST_F(RunTest, WhoOnlyLooksIsInNobodysWay) {
  ASSERT_EQ(Milepost({"run", Write("a.yaml", SmallJob(folder_, 4))}).exit_code, kExitOk);
  std::vector<Subprocess> lists;
  for (int i = 0; i < 4; ++i) {
    auto list = Subprocess::Spawn(Command({"job", "list"}, absl::StrCat("list", i)));
    ASSERT_TRUE(list.ok()) << list.status();
    lists.push_back(*std::move(list));
  }
  Begin({"run", Write("b.yaml", WithRate(SmallJob(folder_, 4), 1e-3))});
  for (size_t i = 0; i < lists.size(); ++i) {
    const auto end = lists[i].Wait(absl::Now() + kPatience);
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->exit_code, kExitOk) << TextOf(Path(absl::StrCat("list", i, ".err")));
  }
  EXPECT_EQ(AwaitEnd(), kExitOk) << TextOf(Path("run.err"));
}

TEST_F(RunTest, HintsAreTrueOfTheJobAtHand) {
  v1::JobSpec spec = SmallJob(folder_, 3);
  spec.mutable_model()->mutable_gpt2()->set_vocabulary(300);  // tokens of some tokenizer
  const Ran ran = Milepost({"run", Write("a.yaml", spec)});
  ASSERT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_THAT(ran.err, Not(HasSubstr("--prompt ")));
  const std::string flag = "--prompt-ids ";
  const size_t at = ran.err.find(flag);
  ASSERT_NE(at, std::string::npos) << ran.err;
  const size_t begin = at + flag.size();
  const std::string ids = ran.err.substr(begin, ran.err.find(' ', begin) - begin);
  const Ran text = Milepost({"generate", "--job", "jobs/1", "--prompt-ids", ids, "--tokens", "4"});
  EXPECT_EQ(text.exit_code, kExitOk) << text.err;
  const Ran wrong = Milepost({"generate", "--job", "jobs/1", "--prompt", "And God said"});
  EXPECT_EQ(wrong.exit_code, kExitUsage);
  EXPECT_THAT(wrong.err, testing::StartsWith("milepost: this model's tokens are not bytes"));
}

TEST_F(RunTest, AHuggingFaceFolderIsTrainedFurtherOnAMasksTargets) {
  const v1::JobSpec first = SmallJob(folder_, 4);
  ASSERT_EQ(Milepost({"run", Write("first.yaml", first)}).exit_code, kExitOk);
  const Ran exported = Milepost({"checkpoint", "export", "1", "--out", Path("model")});
  ASSERT_EQ(exported.exit_code, kExitOk) << exported.err;

  const auto tokens = data::TokenFile::Open(first.data().train());
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  // Of a run whose targets are `every`th token; 0: there is no mask.
  const auto tuned = [&](uint32_t every) {
    v1::JobSpec spec = first;
    spec.mutable_model()->Clear();
    spec.mutable_model()->set_hugging_face("model");
    if (every > 0) {
      const std::string name = absl::StrCat("mask", every, ".npy");
      auto writer = data::NpyWriter::Create(Path(name), data::TokenType::kUint8);
      EXPECT_TRUE(writer.ok()) << writer.status();
      std::vector<uint32_t> mask;
      for (int64_t i = 0; i < (*tokens)->size(); ++i) mask.push_back(i % every == 0 ? 1 : 0);
      EXPECT_EQ((*writer)->Append(mask), absl::OkStatus());
      EXPECT_EQ((*writer)->Finish(), absl::OkStatus());
      spec.mutable_data()->mutable_loss_mask()->set_train(name);
    }
    const std::string path = Write(absl::StrCat("tuned", every, ".yaml"), spec);
    const Ran ran = Milepost({"run", path, "-o", "json"});
    EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
    const std::string key = "\"train_loss\":";
    const size_t at = ran.out.rfind(key);
    EXPECT_NE(at, std::string::npos) << ran.out;
    return ran.out.substr(at, ran.out.find(',', at) - at);
  };
  const std::string all = tuned(0);
  EXPECT_EQ(tuned(1), all);
  EXPECT_NE(tuned(3), all);
  const std::string job = Milepost({"job", "describe", "2", "-o", "json"}).out;
  EXPECT_THAT(job, AllOf(HasSubstr("\"vocabulary\""), HasSubstr(Path("model"))));
  EXPECT_THAT(job, HasSubstr("\"hugging_face\": \"\""));
}

// Their checkpoints hold nothing of the model, which must be the same whenever it is read.
TEST_F(RunTest, AdaptersGoOnOverTheModelTheyAdapt) {
  v1::JobSpec spec = SmallJob(folder_, 4);
  ASSERT_EQ(Milepost({"run", Write("first.yaml", spec)}).exit_code, kExitOk);
  ASSERT_EQ(Milepost({"checkpoint", "export", "1", "--out", Path("model")}).exit_code, kExitOk);
  spec.mutable_train()->set_seed(99);
  ASSERT_EQ(Milepost({"run", Write("other.yaml", spec)}).exit_code, kExitOk);
  ASSERT_EQ(Milepost({"checkpoint", "export", "2", "--out", Path("other")}).exit_code, kExitOk);

  spec.mutable_model()->Clear();
  spec.mutable_model()->set_hugging_face("model");
  spec.mutable_model()->mutable_lora()->set_rank(4);
  spec.mutable_model()->mutable_lora()->set_dora(true);
  const auto run = [&](int64_t steps) {
    spec.mutable_train()->set_steps(steps);
    return Milepost({"run", Write("lora.yaml", spec)});
  };
  Ran ran = run(4);
  ASSERT_EQ(ran.exit_code, kExitOk) << ran.err;
  ran = run(8);
  ASSERT_EQ(ran.exit_code, kExitOk) << ran.err;
  // It went on from the first run's end.
  EXPECT_THAT(Milepost({"job", "describe", "3", "-o", "json"}).out,
              HasSubstr("\"start_step\": 4,"));
  const std::string newest = "4";
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "generate", "--checkpoint", newest, "--prompt", "a", "--tokens", "8", "--temperature", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Milepost(arguments);
  };
  const Ran whole = text({});
  EXPECT_EQ(whole.exit_code, kExitOk) << whole.err;

  const Ran adapters = Milepost({"checkpoint", "export", newest, "--out", Path("adapters")});
  EXPECT_EQ(adapters.exit_code, kExitOk) << adapters.err;
  EXPECT_TRUE(std::filesystem::exists(Path("adapters/adapter_config.json")));
  EXPECT_LT(std::filesystem::file_size(Path("adapters/adapter_model.safetensors")),
            std::filesystem::file_size(Path("model/model.safetensors")) / 2);
  const Ran merged = Milepost({"checkpoint", "export", newest, "--out", Path("merged"), "--merge"});
  EXPECT_EQ(merged.exit_code, kExitOk) << merged.err;
  EXPECT_EQ(std::filesystem::file_size(Path("merged/model.safetensors")),
            std::filesystem::file_size(Path("model/model.safetensors")));

  const Ran wrong = text({"--base", Path("other")});
  EXPECT_THAT(wrong.err, HasSubstr("holds another model than the one that checkpoints/4 adapts"));
  std::filesystem::copy_file(Path("other/model.safetensors"), Path("model/model.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  ran = run(12);
  EXPECT_EQ(ran.exit_code, kExitJobFailed) << ran.out;
  EXPECT_THAT(ran.err, HasSubstr("holds another model than the one that step 8"));
}

// A whole model is compared with the folder's at every start; a checkpoint holds the trained alone.
TEST_F(RunTest, PreferencesGoOnBesideWhatTheModelWas) {
  v1::JobSpec spec = SmallJob(folder_, 4);
  ASSERT_EQ(Milepost({"run", Write("first.yaml", spec)}).exit_code, kExitOk);
  ASSERT_EQ(Milepost({"checkpoint", "export", "1", "--out", Path("model")}).exit_code, kExitOk);
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 64 * 40 + 1; ++i) {  // four documents to a sample
    tokens.push_back(i % 16 == 15 ? '\n' : 'a' + i * i % 26);
  }
  auto writer = data::NpyWriter::Create(Path("pairs.npy"), data::TokenType::kUint8);
  ASSERT_TRUE(writer.ok() && (*writer)->Append(tokens).ok() && (*writer)->Finish().ok());
  spec.mutable_train()->mutable_dpo();
  spec.mutable_train()->set_init_from("model");
  spec.mutable_data()->set_train("pairs.npy");
  spec.mutable_data()->clear_validation();
  spec.mutable_data()->set_document_separator('\n');
  const auto run = [&](int64_t steps) {
    spec.mutable_train()->set_steps(steps);
    return Milepost({"run", Write("pairs.yaml", spec)});
  };
  Ran ran = run(4);
  ASSERT_EQ(ran.exit_code, kExitOk) << ran.err;
  ran = run(8);
  ASSERT_EQ(ran.exit_code, kExitOk) << ran.err;
  const std::string job = Milepost({"job", "describe", "2", "-o", "json"}).out;
  EXPECT_THAT(job, HasSubstr("\"start_step\": 4,"));
  const Ran tuned = Milepost({"checkpoint", "export", "3", "--out", Path("tuned")});
  EXPECT_EQ(tuned.exit_code, kExitOk) << tuned.err;
  EXPECT_EQ(std::filesystem::file_size(Path("tuned/model.safetensors")),
            std::filesystem::file_size(Path("model/model.safetensors")));
  std::filesystem::copy_file(Path("tuned/model.safetensors"), Path("model/model.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  ran = run(12);
  EXPECT_EQ(ran.exit_code, kExitJobFailed) << ran.out;
  EXPECT_THAT(ran.err, HasSubstr("holds another model than the one that step 8"));
}

// One command from a folder and chats to a tuned model; again, it goes on.
TEST_F(RunTest, AFolderIsTunedOnAFile) {
  ASSERT_EQ(Milepost({"run", Write("first.yaml", SmallJob(folder_, 4))}).exit_code, kExitOk);
  ASSERT_EQ(Milepost({"checkpoint", "export", "1", "--out", Path("model")}).exit_code, kExitOk);
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(Path(name), std::ios::binary) << text;
  };
  write("tokenizers.py", client::kTokenizersStandIn);
  write("transformers.py", client::kTransformersStandIn);
  write("model/tokenizer.json", "{}");
  write("model/tokenizer_config.json", R"({"eos_token": {"content": "|"}})");
  std::string chats;
  for (int i = 0; i < 400; ++i) {
    absl::StrAppend(&chats, R"({"messages": [{"role": "user", "content": "q"}, )",
                    R"({"role": "assistant", "content": "a)", i % 10, "\"}]}\n");
  }
  write("chats.jsonl", chats);
  setenv("PYTHONPATH", folder_.c_str(), 1);
  const auto tune = [&](int steps) {
    return Milepost({"run", "--model", Path("model"), "--data", Path("chats.jsonl"), "--lora",
                     "--out", Path("tuned"), "--set", absl::StrCat("train.steps=", steps)});
  };
  const Ran first = tune(4);
  EXPECT_EQ(first.exit_code, kExitOk) << first.err;
  EXPECT_THAT(first.err, HasSubstr("400 examples"));
  const Ran more = tune(8);
  EXPECT_EQ(more.exit_code, kExitOk) << more.err;
  EXPECT_THAT(more.err, HasSubstr("going on with it"));
  EXPECT_THAT(Milepost({"job", "describe", "2", "-o", "json"}).out,
              HasSubstr("\"start_step\": 4,"));
  const Ran both =
      Milepost({"run", Path("tuned/spec.yaml"), "--model", Path("model"), "--data", "x"});
  EXPECT_EQ(both.exit_code, kExitUsage) << both.err;
  unsetenv("PYTHONPATH");
}

// With a rate of next to nothing no validation is better than the first.
TEST_F(RunTest, ARunEndsWhereItsValidationGetsNoBetter) {
  v1::JobSpec spec = WithRate(SmallJob(folder_, 100), 1e-30);
  spec.mutable_train()->mutable_validation()->set_every(2);
  spec.mutable_train()->mutable_validation()->set_patience(3);
  spec.mutable_checkpoint()->set_keep_last(1);
  spec.mutable_checkpoint()->set_keep_best(true);
  const std::string path = Write("a.yaml", spec);
  const Ran ran = Milepost({"run", path});
  EXPECT_EQ(ran.exit_code, kExitOk) << ran.err;
  EXPECT_THAT(Milepost({"job", "list", "-o", "json"}).out, HasSubstr("SUCCEEDED"));
  const std::string list = Milepost({"checkpoint", "list", "-o", "json"}).out;
  EXPECT_THAT(list, AllOf(HasSubstr("\"step\": 2,"), HasSubstr("\"step\": 8,"),
                          HasSubstr("\"validation_loss\"")));
  EXPECT_EQ(Milepost({"checkpoint", "list", "-o", "name"}).out, "checkpoints/2\ncheckpoints/1\n");
  // It is done, and stays so.
  EXPECT_EQ(Milepost({"run", path}).exit_code, kExitOk);
  EXPECT_EQ(Milepost({"checkpoint", "list", "-o", "name"}).out, "checkpoints/2\ncheckpoints/1\n");
}

TEST_F(RunTest, ADivergedRunIsNoSuccess) {
  v1::JobSpec spec = WithRate(SmallJob(folder_, 200), 50);
  spec.mutable_train()->set_precision(v1::PRECISION_FP16);
  spec.mutable_checkpoint()->set_every(1);
  const Ran ran = Milepost({"run", Write("a.yaml", spec)});
  EXPECT_EQ(ran.exit_code, kExitJobFailed) << ran.out;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("diverged: 20 steps in order were skipped"),
                             HasSubstr("train.optimizer.lr")));
  EXPECT_THAT(Milepost({"job", "describe", "1", "-o", "json"}).out, HasSubstr("\"USER\""));
  // None of a step that was skipped takes the place of one from before.
  EXPECT_EQ(Milepost({"checkpoint", "list", "-o", "name"}).out, "checkpoints/1\n");

  spec.mutable_checkpoint()->set_every(0);
  spec.mutable_train()->set_max_skipped_steps(0);
  const Ran last = Milepost({"run", Write("b.yaml", spec)});
  EXPECT_EQ(last.exit_code, kExitJobFailed) << last.out;
  EXPECT_THAT(last.err, HasSubstr("diverged: all steps are done, but the last one, 200, has a"));
}

}  // namespace
}  // namespace milepost::e2e
