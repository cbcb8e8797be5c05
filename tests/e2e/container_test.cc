// Scripts whose ranks run in containers, on real workers. Without MILEPOST_PODMAN_IMAGE, another
// program stands in podman's place (stand_in_podman). With it, podman is the host's, and that is
// its image: it has nothing but links into /usr, which it gets from the host, and sets
// IMAGE_SAYS=hello and PYTHONPATH=/of-the-image (tests/deploy/podman.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/subprocess.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/scripts.h"

#ifndef MILEPOST_STAND_IN_PODMAN
#define MILEPOST_STAND_IN_PODMAN ""  // the build says where it is
#endif

namespace milepost::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

class ContainerTest : public testing::Test {
 protected:
  ContainerTest() {
    fs::create_directories(folder_ + "/bin");
    fs::create_directories(folder_ + "/containers");
    fs::create_directories(folder_ + "/tmp");
    const char* image = std::getenv("MILEPOST_PODMAN_IMAGE");
    real_ = image != nullptr;
    image_ = real_ ? image : "stand-in:1";
    if (!real_) fs::create_symlink(MILEPOST_STAND_IN_PODMAN, folder_ + "/bin/podman");
  }
  ~ContainerTest() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }

  std::vector<std::pair<std::string, std::string>> Environment() const {
    return {{"PATH", absl::StrCat(folder_, "/bin:", std::getenv("PATH"))},
            {"STAND_IN_PODMAN", folder_ + "/containers"},
            {"TMPDIR", folder_ + "/tmp"},
            {"ONLY_OF_THE_HOST", "secret"}};
  }
  ClusterOptions Options(int workers = 1, int slots = 1) const {
    return {.workers = workers,
            .slots = slots,
            .env = Environment(),
            .worker_flags = {"--allow-scripts"}};
  }
  v1::JobSpec Shell(const std::string& text, int ranks = 1, int max_failures = 0) const {
    v1::JobSpec spec;
    spec.set_name("contained");
    v1::ScriptSpec* script = spec.mutable_script();
    for (const char* part : {"sh", "-c", text.c_str()}) script->add_command(part);
    script->set_folder(folder_);
    script->mutable_container()->set_image(image_);
    script->mutable_container()->add_mounts("/usr:ro");
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_restart()->set_max_failures(max_failures);
    spec.mutable_restart()->set_backoff_seconds(0);
    return spec;
  }
  v1::Failure FailureOf(Cluster& cluster, const v1::JobSpec& spec) const {
    const v1::Job end = cluster.Await(cluster.Submit(spec), IsTerminal);
    EXPECT_EQ(end.state(), v1::JOB_STATE_FAILED);
    EXPECT_EQ(end.attempts(), 1);
    return end.first_failure();
  }
  std::string TextOf(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  template <typename Condition>
  static bool Becomes(Condition condition) {
    const absl::Time give_up = absl::Now() + absl::Minutes(1);
    while (!condition() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }
  void AwaitFile(const std::string& name) const {
    ASSERT_TRUE(Becomes([&] { return fs::exists(folder_ + "/" + name); })) << name;
  }
  // As podman lists them, running or not.
  std::string Containers() const {
    SpawnOptions spawn;
    spawn.argv = {"/usr/bin/env", "podman", "ps", "--all", "--format={{.Names}}"};
    spawn.env = Environment();
    spawn.out = Redirect::File(folder_ + "/ps");
    fs::remove(folder_ + "/ps");
    EXPECT_TRUE(Subprocess::Spawn(std::move(spawn))->Wait().ok());
    return TextOf("ps");
  }
  bool NoneIsLeft() const {
    return Becomes([this] { return !absl::StrContains(Containers(), "milepost-"); });
  }
  // How long a process sleeps tells it from all others, whatever its number is here.
  std::string Nap(int which) const { return absl::StrCat(1000 + which, getpid()); }
  bool NapEnds(int which) const {
    const std::string command = absl::StrCat("sleep", std::string(1, 0), Nap(which));
    return Becomes([&] {
      std::error_code error;
      for (const auto& entry : fs::directory_iterator("/proc", error)) {
        std::ifstream file(entry.path() / "cmdline");
        std::string line;
        std::getline(file, line);
        if (absl::StartsWith(line, command)) return false;
      }
      return true;
    });
  }
  static std::string LogText(Cluster& cluster, const std::string& job) {
    std::string text;
    for (const v1::LogLine& line : cluster.Logs(job)) absl::StrAppend(&text, line.text(), "\n");
    return text;
  }

  const std::string folder_ = MakeFolder("milepost_container");
  bool real_ = false;
  std::string image_;
};

TEST_F(ContainerTest, RanksRunInTheImageAndAFailureStartsAllAgain) {
  Cluster cluster(folder_, Options(/*workers=*/2));
  cluster.Start();
  v1::JobSpec spec = Shell(
      "echo rank $RANK of $WORLD_SIZE in $(pwd) at attempt $MILEPOST_ATTEMPT: $IMAGE_SAYS, "
      "$MINE, [$ONLY_OF_THE_HOST], $OMP_NUM_THREADS thread, $PYTHONPATH; "
      "echo $RANK > $MILEPOST_SCRATCH/x && cat $MILEPOST_TOKEN_FILE > /dev/null || exit 9; "
      "[ $MILEPOST_ATTEMPT = 1 ] || exit 0; "
      "[ $RANK != 1 ] || { echo no luck >&2; exit 7; }; exec sleep 1000",
      /*ranks=*/2, /*max_failures=*/3);
  spec.mutable_resources()->set_threads_per_rank(1);
  (*spec.mutable_script()->mutable_environment())["MINE"] = "two  words";
  const std::string job = cluster.Submit(spec);
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.failures(), 1);
  EXPECT_EQ(end.first_failure().message(), "the script ended: exit code 7: no luck");
  const std::string log = LogText(cluster, job);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(log, HasSubstr(absl::StrCat("rank ", rank, " of 2 in ", folder_,
                                            " at attempt 2: hello, two words, [], 1 thread, ")));
  }
  EXPECT_THAT(log, HasSubstr("/at_start:/of-the-image:"));
  EXPECT_TRUE(NoneIsLeft());
}

TEST_F(ContainerTest, WhatIsWrongIsNamedOnce) {
  Cluster cluster(folder_, Options());
  cluster.Start();
  v1::JobSpec spec = Shell("kill -9 $$");
  EXPECT_THAT(FailureOf(cluster, spec).message(),
              HasSubstr("the script ended: killed by signal 9"));
  EXPECT_EQ(FailureOf(cluster, Shell("exit 137")).message(), "the script ended: exit code 137");

  spec = Shell("", 1, /*max_failures=*/3);
  spec.mutable_script()->set_command(0, "no-such-program");
  v1::Failure failure = FailureOf(cluster, spec);
  EXPECT_EQ(failure.class_(), v1::FAILURE_CLASS_USER);
  EXPECT_EQ(failure.message(),
            "script.command: no-such-program in the container: No such file or directory");

  spec = Shell("", 1, /*max_failures=*/3);
  spec.mutable_script()->mutable_container()->add_mounts("/no-such-folder:/x");
  failure = FailureOf(cluster, spec);
  EXPECT_EQ(failure.class_(), v1::FAILURE_CLASS_USER);
  EXPECT_EQ(failure.message(),
            "script.container.mounts: /no-such-folder is not there on this host");

  spec = Shell("", 1, /*max_failures=*/3);
  spec.mutable_script()->mutable_container()->set_image("oci-archive:/no-such-archive.tar");
  failure = FailureOf(cluster, spec);
  EXPECT_EQ(failure.class_(), v1::FAILURE_CLASS_USER);
  EXPECT_THAT(failure.message(), HasSubstr("oci-archive:/no-such-archive.tar: podman could not "
                                           "fetch it: "));
  EXPECT_TRUE(NoneIsLeft());
}

TEST_F(ContainerTest, WithoutPodmanTheRemedyIsSaid) {
  ClusterOptions options = Options();
  options.env[0].second = folder_ + "/tmp";  // PATH
  Cluster cluster(folder_, options);
  cluster.Start();
  const v1::Failure failure = FailureOf(cluster, Shell("", 1, /*max_failures=*/3));
  EXPECT_EQ(failure.class_(), v1::FAILURE_CLASS_USER);
  EXPECT_THAT(failure.message(), AllOf(HasSubstr("has no podman"), HasSubstr("resources.pool")));
}

TEST_F(ContainerTest, IsToldToStopAndMaySave) {
  Cluster cluster(folder_, Options());
  cluster.Start();
  const std::string job = cluster.Submit(
      Shell("trap 'echo saved > saved; exit 0' TERM; touch ready; while :; do sleep 0.05; done"));
  AwaitFile("ready");
  cluster.Cancel(job);
  EXPECT_EQ(cluster.Await(job, IsTerminal).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(TextOf("saved"), "saved\n");
  // One that knows nothing of SIGTERM dies of it.
  const std::string plain = cluster.Submit(Shell(absl::StrCat("touch plain; exec sleep ", Nap(1))));
  AwaitFile("plain");
  cluster.Cancel(plain);
  EXPECT_EQ(cluster.Await(plain, IsTerminal, absl::Seconds(30)).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(NapEnds(1));
  EXPECT_TRUE(NoneIsLeft());
}

TEST_F(ContainerTest, NothingOutlivesItsRankWhoeverIsKilled) {
  Cluster cluster(folder_, Options());
  cluster.Start();
  // What stands in for podman ends a process group.
  const std::string text =
      absl::StrCat("[ $MILEPOST_ATTEMPT = 1 ] || exit 0; trap '' TERM; ", real_ ? "setsid" : "",
                   " sleep ", Nap(1), " & touch ready; exec sleep ", Nap(2));
  const std::string job = cluster.Submit(Shell(text, 1, /*max_failures=*/3));
  AwaitFile("ready");
  EXPECT_THAT(Containers(), HasSubstr("milepost-"));
  ASSERT_TRUE(cluster.KillTrainer(0));
  EXPECT_TRUE(NapEnds(2));
  EXPECT_TRUE(NapEnds(1));
  EXPECT_EQ(cluster.Await(job, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(NoneIsLeft());

  fs::remove(folder_ + "/ready");
  const std::string next = cluster.Submit(Shell(text, 1, /*max_failures=*/3));
  AwaitFile("ready");
  cluster.KillWorker(0);
  EXPECT_TRUE(NapEnds(2)) << "nobody but the container itself is there to end it";
  EXPECT_TRUE(NapEnds(1));
  cluster.StartWorker(0);
  EXPECT_EQ(cluster.Await(next, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(NoneIsLeft());
}

TEST_F(ContainerTest, ItsCheckpointsAreWhatTheNextAttemptBeginsWith) {
  Cluster cluster(folder_, Options(/*workers=*/1, /*slots=*/2));
  cluster.Start();
  std::ofstream(folder_ + "/train.py") << kTrainingScript;
  std::ofstream(folder_ + "/fail") << "once";
  std::ofstream(folder_ + "/go") << "on";
  const std::string job =
      cluster.Submit(Shell("exec python3 train.py", /*ranks=*/2, /*max_failures=*/3));
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.attempts(), 2);
  EXPECT_EQ(end.progress().step(), 400);
  EXPECT_EQ(end.progress().start_step(), 200);
  EXPECT_THAT(TextOf("starts"), AllOf(HasSubstr("0 of 2 at 200\n"), HasSubstr("1 of 2 at 200\n")));
  EXPECT_THAT(LogText(cluster, job), HasSubstr("train.py")) << "where rank 0 was is in its log";
}

TEST_F(ContainerTest, MoreMemoryThanItsSlotHasIsNamed) {
  ClusterOptions options = Options();
  options.worker_flags.insert(options.worker_flags.end(), {"--memory-bytes", "268435456"});
  Cluster cluster(folder_, options);
  cluster.Start();
  if (!HasLimits(folder_)) GTEST_SKIP() << LogOfWorker(folder_);
  const v1::Failure failure =
      FailureOf(cluster, Shell("exec python3 -c 'b\"x\" * 1000000000; print(1)'"));
  EXPECT_EQ(failure.class_(), v1::FAILURE_CLASS_OUT_OF_MEMORY);
  EXPECT_THAT(failure.message(), AllOf(HasSubstr("out of memory: the kernel killed "),
                                       HasSubstr("which may use 256.0 MiB of host memory")));
  EXPECT_TRUE(NoneIsLeft());
}

}  // namespace
}  // namespace milepost::e2e
