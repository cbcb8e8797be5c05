// Jobs that run a program of the user's own, on real workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ScriptTest : public testing::Test {
 protected:
  ~ScriptTest() override {
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }

  v1::JobSpec Shell(const std::string& text, int ranks, int max_failures = 3) const {
    v1::JobSpec spec;
    spec.set_name("script");
    for (const char* part : {"sh", "-c", text.c_str()}) spec.mutable_script()->add_command(part);
    spec.mutable_script()->set_folder(folder_);
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_restart()->set_max_failures(max_failures);
    spec.mutable_restart()->set_backoff_seconds(0);
    return spec;
  }
  std::string TextOf(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Until a script has written it as a whole line.
  std::string AwaitText(const std::string& name) const {
    const absl::Time give_up = absl::Now() + absl::Minutes(2);
    while (absl::Now() < give_up) {
      std::string text = TextOf(name);
      if (!text.empty() && text.back() == '\n') return text;
      absl::SleepFor(absl::Milliseconds(5));
    }
    ADD_FAILURE() << name << " was never written";
    return "";
  }
  // Until the process has gone.
  static bool Ends(int pid) {
    const absl::Time give_up = absl::Now() + absl::Minutes(1);
    while (absl::Now() < give_up) {
      if (kill(pid, 0) != 0 && errno == ESRCH) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  static std::string LogText(Cluster& cluster, const std::string& job) {
    std::string text;
    for (const v1::LogLine& line : cluster.Logs(job)) absl::StrAppend(&text, line.text(), "\n");
    return text;
  }

  const std::string folder_ = MakeFolder("milepost_script");
};

TEST_F(ScriptTest, RanksKnowEachOtherAndAFailureStartsAllAgain) {
  Cluster cluster(folder_, {.workers = 2, .slots = 2, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  // Rank 3 fails the first time; the others would wait for ever.
  const std::string job = cluster.Submit(
      Shell("echo I am $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, attempt "
            "$MILEPOST_ATTEMPT, at $MASTER_PORT; [ $MILEPOST_ATTEMPT = 1 ] || exit 0; "
            "[ $RANK != 3 ] || { echo no luck; exit 7; }; exec sleep 1000",
            /*ranks=*/4));
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.failures(), 1);
  const std::string log = LogText(cluster, job);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(log, HasSubstr(absl::StrCat("I am ", rank, " of 4, local ")));
    EXPECT_THAT(log, HasSubstr(absl::StrCat("local ", rank, " of 4, attempt 2")))
        << "both workers are of one host";
  }
}

TEST_F(ScriptTest, ItsFailureIsNamedByWhatItSaidLast) {
  Cluster cluster(folder_, {.workers = 1, .slots = 1, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  const std::string plain = cluster.Submit(Shell("echo boom >&2; exit 3", 1, /*max_failures=*/0));
  const v1::Job end = cluster.Await(plain, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(end.first_failure().class_(), v1::FAILURE_CLASS_SCRIPT);
  EXPECT_EQ(end.first_failure().message(), "the script ended: exit code 3: boom");
  const std::string recorded = cluster.Submit(
      Shell("echo '{\"message\": {\"message\": \"ValueError: bad\"}}' > $TORCHELASTIC_ERROR_FILE; "
            "echo noise; exit 1",
            1, /*max_failures=*/0));
  EXPECT_EQ(cluster.Await(recorded, IsTerminal).first_failure().message(),
            "the script ended: exit code 1: ValueError: bad");
  // What it does to itself is not the host's fault.
  const std::string killed = cluster.Submit(Shell("kill -9 $$", 1, /*max_failures=*/0));
  const v1::Failure failure = cluster.Await(killed, IsTerminal).first_failure();
  EXPECT_EQ(failure.class_(), v1::FAILURE_CLASS_SCRIPT);
  EXPECT_THAT(failure.message(), HasSubstr("killed by signal 9"));
  // Trying again would not help: once is enough.
  v1::JobSpec spec = Shell("", 1);
  spec.mutable_script()->mutable_command()->Clear();
  spec.mutable_script()->add_command("no-such-program");
  const v1::Job absent = cluster.Await(cluster.Submit(spec), IsTerminal);
  EXPECT_EQ(absent.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(absent.attempts(), 1);
  EXPECT_THAT(absent.first_failure().message(), HasSubstr("no program no-such-program"));
}

// As transformers' Trainer does where these variables are set.
TEST_F(ScriptTest, ItsReportsAreTheJobsProgress) {
  Cluster cluster(folder_, {.workers = 1, .slots = 1, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  const std::string job = cluster.Submit(Shell(R"(python3 - <<'END'
import json, os, time, urllib.request
def post(step):
    metrics = {'loss': 4.0 - step, 'current_step': step, 'total_steps': 3, 'accuracy': 0.5}
    status = {'progressPercentage': step * 33, 'estimatedRemainingSeconds': 7,
              'metrics': [{'name': n, 'value': str(v)} for n, v in metrics.items()]}
    with open(os.environ['KUBEFLOW_TRAINER_SERVER_TOKEN']) as file: token = file.read()
    urllib.request.urlopen(urllib.request.Request(
        os.environ['KUBEFLOW_TRAINER_SERVER_URL'],
        data=json.dumps({'trainerStatus': status}).encode(),
        headers={'Authorization': 'Bearer ' + token}, method='POST'))
post(1)
while not os.path.exists('go'): time.sleep(0.01)
post(3)
END)",
                                               1));
  const v1::Job running =
      cluster.Await(job, [](const v1::Job& now) { return now.progress().step() == 1; });
  EXPECT_EQ(running.state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(running.progress().total_steps(), 3);
  EXPECT_EQ(running.progress().train_loss(), 3);
  EXPECT_EQ(running.progress().remaining_seconds(), 7);
  EXPECT_EQ(running.progress().metrics().at("accuracy"), 0.5);
  std::ofstream(folder_ + "/go") << "now";
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.progress().step(), 3) << "the last report came right before the end";
  EXPECT_EQ(end.progress().train_loss(), 1);
}

TEST_F(ScriptTest, IsToldToStopAndMaySave) {
  Cluster cluster(folder_, {.workers = 1, .slots = 1, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  const std::string job = cluster.Submit(Shell(
      "trap 'echo saved > saved; exit 0' TERM; echo $$ > pid; while :; do sleep 0.01; done", 1));
  const int pid = std::stoi(AwaitText("pid"));
  cluster.Cancel(job);
  EXPECT_EQ(cluster.Await(job, IsTerminal).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(TextOf("saved"), "saved\n");
  EXPECT_TRUE(Ends(pid));
}

// Of the script, of what it has started, and of what has left its group.
TEST_F(ScriptTest, NothingOutlivesItsRank) {
  Cluster cluster(folder_, {.workers = 1, .slots = 1, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  const std::string job =
      cluster.Submit(Shell("[ $MILEPOST_ATTEMPT = 1 ] || exit 0; sleep 1000 & echo $! > child; "
                           "echo $$ > pid; wait",
                           1));
  const int pid = std::stoi(AwaitText("pid"));
  const int child = std::stoi(AwaitText("child"));
  ASSERT_TRUE(cluster.KillTrainer(0));
  EXPECT_TRUE(Ends(pid));
  EXPECT_TRUE(Ends(child));
  EXPECT_EQ(cluster.Await(job, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);

  std::filesystem::remove(folder_ + "/child");
  const std::string leaving =
      cluster.Submit(Shell("setsid sleep 1000 & echo $! > child; sleep 0.1", 1));
  EXPECT_EQ(cluster.Await(leaving, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(Ends(std::stoi(AwaitText("child"))));
}

TEST_F(ScriptTest, AWorkerRunsNoneUnlessItsOperatorSaysSo) {
  Cluster cluster(folder_, {.workers = 1, .slots = 1});
  cluster.Start();
  const v1::Job end = cluster.Await(cluster.Submit(Shell("touch ran", 1)), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(end.first_failure().class_(), v1::FAILURE_CLASS_USER);
  EXPECT_THAT(end.first_failure().message(),
              AllOf(HasSubstr("--allow-scripts"), HasSubstr("resources.pool")));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/ran"));
}

}  // namespace
}  // namespace milepost::e2e
