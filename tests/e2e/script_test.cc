// Jobs that run a program of the user's own, on real workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/scripts.h"
#include "worker/cgroup/cgroup_tree.h"

namespace milepost::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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

// In place of PyTorch's: rank 0 has called a seventh time, and rank 1 has not.
constexpr char kRecorder[] = R"(
import os
def _dump_fr_trace_json(entries, only_active, backend):
    calls = 7 - int(os.environ["RANK"])
    return b"{}" if backend != "gloo" else ('{"entries": [{"process_group": ["0", "default_pg"], '
        '"collective_seq_id": %d, "profiling_name": "gloo:barrier", "time_created_ns": 1, '
        '"timeout_ms": 1}], "pg_status": {"0": {"last_enqueued_collective": "%d", '
        '"last_completed_collective": "6"}}}' % (calls, calls)).encode()
)";

TEST_F(ScriptTest, TheRankThatDidNotComeToACollectiveCallIsNamed) {
  Cluster cluster(folder_, {.workers = 1, .slots = 2, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  for (const char* folder : {"/torch/distributed", "/torch/_C"}) {
    std::filesystem::create_directories(folder_ + folder);
  }
  std::ofstream(folder_ + "/torch/distributed/distributed_c10d.py") << "_world = 1\n";
  std::ofstream(folder_ + "/torch/_C/_distributed_c10d.py") << kRecorder;
  std::ofstream(folder_ + "/train.py") << R"(
import os, time, torch.distributed.distributed_c10d
def batches():
    open("there", "w").close()
    while True: time.sleep(1000)
if os.environ["RANK"] == "1":
    batches()
while not os.path.exists("there"): time.sleep(0.01)
raise RuntimeError("Timed out")
)";
  const std::string job =
      cluster.Submit(Shell("exec python3 -B train.py", /*ranks=*/2, /*max_failures=*/0));
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(end.first_failure().message(),
              AllOf(HasSubstr("1 rank waited in barrier (call 7 of default_pg) for rank 1 on "),
                    HasSubstr(", which was at train.py:5 (batches). Rank 0 said: the script ended: "
                              "exit code 1: RuntimeError: Timed out")));
  EXPECT_THAT(end.reason_detail(), HasSubstr("for rank 1 on "));
  EXPECT_THAT(LogText(cluster, job), HasSubstr("train.py\", line 5 in batches"));
}

// A wheel is a zip file with some texts about it.
constexpr char kWheel[] = R"(import sys, zipfile
info = "milepost_tiny-1.0.dist-info/"
with zipfile.ZipFile(sys.argv[1] + "/milepost_tiny-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("milepost_tiny.py", "VALUE = 7\n")
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: milepost_tiny\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "")
)";

TEST_F(ScriptTest, ItsRequirementsAreInstalled) {
  if (system("python3 -c 'import pip' 2> /dev/null") != 0) GTEST_SKIP() << "python3 has no pip";
  std::filesystem::create_directory(folder_ + "/wheels");
  std::ofstream(folder_ + "/wheel.py") << kWheel;
  ASSERT_EQ(system(absl::StrCat("python3 ", folder_, "/wheel.py ", folder_, "/wheels").c_str()), 0);
  setenv("TMPDIR", folder_.c_str(), 1);  // where environments are kept
  Cluster cluster(folder_, {.workers = 1, .slots = 2, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  unsetenv("TMPDIR");
  std::ofstream(folder_ + "/requirements.txt") << "milepost_tiny==1.0\n";
  v1::JobSpec spec = Shell(
      "python3 -c 'import milepost_tiny as t; print(\"value\", t.VALUE)'; "
      "echo in $VIRTUAL_ENV",
      2);
  spec.mutable_script()->set_requirements("requirements.txt");
  spec.mutable_script()->set_wheels(folder_ + "/wheels");
  const std::string job = cluster.Submit(spec);
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_THAT(LogText(cluster, job), AllOf(HasSubstr("value 7\n"),
                                           HasSubstr("in " + folder_ + "/milepost-environments-")));

  std::ofstream(folder_ + "/requirements.txt") << "milepost_tiny==2.0\n";
  const v1::Job never = cluster.Await(cluster.Submit(spec), IsTerminal);
  EXPECT_EQ(never.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(never.attempts(), 1) << "trying again would not help";
  EXPECT_THAT(never.first_failure().message(),
              HasSubstr("script.requirements: pip failed: No matching distribution found for "
                        "milepost_tiny==2.0"));
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

// What control groups add, where workers can make them.
class LimitedScriptTest : public ScriptTest {
 protected:
  // Of the rank's groups, from what its script has seen in /proc/self/cgroup.
  static bool GroupIsGone(const std::string& memberships) {
    const size_t begin = memberships.find("milepost-");
    if (begin == std::string::npos) {
      ADD_FAILURE() << "it was in no group: " << memberships;
      return false;
    }
    const std::string name = memberships.substr(begin, memberships.find('\n', begin) - begin);
    const absl::Time give_up = absl::Now() + absl::Minutes(1);
    while (absl::Now() < give_up) {
      bool there = false;
      for (const worker::CgroupPlace& place : worker::FindCgroupPlaces()) {
        there = there || std::filesystem::exists(place.folder + "/" + name);
      }
      if (!there) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
};

TEST_F(LimitedScriptTest, MoreMemoryThanItsSlotHasIsNamedWithTheFigures) {
  Cluster cluster(folder_, {.workers = 1,
                            .slots = 1,
                            .worker_flags = {"--allow-scripts", "--memory-bytes", "67108864"}});
  cluster.Start();
  if (!HasLimits(folder_)) GTEST_SKIP() << LogOfWorker(folder_);
  // Of the script only a child is killed, and the script ends as it likes.
  const std::string job = cluster.Submit(
      Shell("cat /proc/self/cgroup > group; head -c 300000000 /dev/zero | tail -c 200000000 > "
            "/dev/null; echo a child is gone; exit 7",
            1, /*max_failures=*/0));
  const v1::Failure failure = cluster.Await(job, IsTerminal).first_failure();
  EXPECT_EQ(failure.class_(), v1::FAILURE_CLASS_OUT_OF_MEMORY) << failure.message();
  EXPECT_THAT(failure.message(),
              AllOf(HasSubstr("out of memory: the kernel killed "),
                    HasSubstr("which may use 64.0 MiB of host memory and had used "),
                    HasSubstr("--memory-bytes")));
  EXPECT_TRUE(GroupIsGone(TextOf("group")));
  // The script itself: there is one cause, and no guess beside it.
  const std::string itself = cluster.Submit(
      Shell("exec python3 -c 'b\"x\" * 200000000; print(1)'", 1, /*max_failures=*/0));
  EXPECT_THAT(cluster.Await(itself, IsTerminal).first_failure().message(),
              AllOf(HasSubstr("which may use 64.0 MiB"), Not(HasSubstr("someone's kill"))));
  // What fits, fits.
  const std::string fits = cluster.Submit(
      Shell("head -c 30000000 /dev/zero | tail -c 20000000 > /dev/null", 1, /*max_failures=*/0));
  EXPECT_EQ(cluster.Await(fits, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
}

// It starts only inside of a group, which has room for 64, and ends by itself after 30 seconds.
constexpr char kForkBomb[] = R"(
import os, sys, time
groups = open('/proc/self/cgroup').read()
if 'milepost-' not in groups: sys.exit(9)
with open('group', 'w') as file: file.write(groups)
first, end = os.getpid(), time.monotonic() + 30
while time.monotonic() < end:
    try:
        if os.fork() == 0: os.setsid()
    except OSError:
        if os.getpid() == first: sys.exit(3)
os._exit(0)
)";

TEST_F(LimitedScriptTest, AForkBombEndsWithItsRankAndTheWorkerGoesOn) {
  Cluster cluster(
      folder_,
      {.workers = 1, .slots = 1, .worker_flags = {"--allow-scripts", "--script-processes", "64"}});
  cluster.Start();
  if (!HasLimits(folder_)) GTEST_SKIP() << LogOfWorker(folder_);
  std::ofstream(folder_ + "/bomb.py") << kForkBomb;
  const std::string job = cluster.Submit(Shell("exec python3 bomb.py", 1, /*max_failures=*/0));
  const v1::Failure failure = cluster.Await(job, IsTerminal).first_failure();
  EXPECT_EQ(failure.class_(), v1::FAILURE_CLASS_SCRIPT);
  EXPECT_THAT(failure.message(),
              AllOf(HasSubstr("may have 64 processes and threads"), HasSubstr("--script-processes"),
                    HasSubstr("the script ended: exit code 3")));
  EXPECT_TRUE(GroupIsGone(TextOf("group"))) << "so no process of it is left";
  cluster.CheckAllRun();
  const std::string next = cluster.Submit(Shell("exit 0", 1, /*max_failures=*/0));
  EXPECT_EQ(cluster.Await(next, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
}

// Neither its session nor its parent ties it to the rank then.
TEST_F(LimitedScriptTest, WhatHasLeftItsSessionEndsWhoeverWasKilled) {
  Cluster cluster(folder_, {.workers = 1, .slots = 1, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  if (!HasLimits(folder_)) GTEST_SKIP() << LogOfWorker(folder_);
  const std::string text =
      "[ $MILEPOST_ATTEMPT = 1 ] || exit 0; cat /proc/self/cgroup > group; "
      "setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & echo $! > child; wait' & "
      "echo $$ > pid; wait; sleep 1000";
  const std::string job = cluster.Submit(Shell(text, 1));
  AwaitText("pid");
  const int child = std::stoi(AwaitText("child"));
  ASSERT_TRUE(cluster.KillTrainer(0));
  EXPECT_TRUE(Ends(child));
  EXPECT_TRUE(GroupIsGone(TextOf("group")));
  EXPECT_EQ(cluster.Await(job, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);

  for (const char* name : {"/child", "/pid"}) std::filesystem::remove(folder_ + name);
  const std::string next = cluster.Submit(Shell(text, 1));
  AwaitText("pid");
  const int orphan = std::stoi(AwaitText("child"));
  cluster.KillWorker(0);
  EXPECT_TRUE(Ends(std::stoi(TextOf("pid"))));
  EXPECT_EQ(kill(orphan, 0), 0) << "nobody is there to end it";
  cluster.StartWorker(0);
  EXPECT_TRUE(Ends(orphan));
  EXPECT_TRUE(GroupIsGone(TextOf("group")));
  EXPECT_EQ(cluster.Await(next, IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
}

class PythonScriptTest : public ScriptTest {
 protected:
  v1::JobSpec Train() const {
    std::ofstream(folder_ + "/train.py") << kTrainingScript;
    v1::JobSpec spec = Shell("exec python3 train.py", /*ranks=*/2);
    spec.mutable_checkpoint()->set_keep_last(2);
    return spec;
  }
  void Expect(const std::string& result) const {
    double total = 0;
    for (int step = 1; step <= 400; ++step) total = total * 1.0001 + step + 7;
    EXPECT_NEAR(std::stod(result), total, 1e-4);
  }
};

TEST_F(PythonScriptTest, ItsCheckpointsAreWhatTheNextAttemptBeginsWith) {
  Cluster cluster(folder_, {.workers = 2, .slots = 1, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  std::ofstream(folder_ + "/fail") << "once";
  std::ofstream(folder_ + "/go") << "on";
  const std::string job = cluster.Submit(Train());
  AwaitText("runs");
  cluster.KillCoordinator();  // it trains on, and what it saves waits
  cluster.StartCoordinator();
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.attempts(), 2);
  EXPECT_EQ(end.first_failure().message(), "the script ended: exit code 3");
  EXPECT_EQ(end.progress().step(), 400);
  EXPECT_EQ(end.progress().start_step(), 200);
  EXPECT_THAT(end.progress().restored_from(), HasSubstr("checkpoints/"));
  Expect(TextOf("result"));
  EXPECT_THAT(TextOf("starts"), AllOf(HasSubstr("0 of 2 at 200\n"), HasSubstr("1 of 2 at 200\n")));
  const std::vector<v1::Checkpoint> kept = cluster.Checkpoints(job);
  ASSERT_EQ(kept.size(), 2U) << "keep_last";
  EXPECT_EQ(kept[0].step(), 400) << "saved right before its end";
  EXPECT_TRUE(cluster.DamagedChunks(kept[0].name()).empty());
}

TEST_F(PythonScriptTest, ItsRanksStopAtOneStepAndFewerGoOn) {
  // Where it begins before both workers are there, it grows first.
  Cluster cluster(
      folder_,
      {.workers = 2, .slots = 1, .resize_seconds = 0.5, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  v1::JobSpec spec = Train();
  spec.mutable_resources()->set_min_ranks(1);
  const std::string job = cluster.Submit(spec);
  AwaitText("runs");
  EXPECT_EQ(cluster.StopWorker(1), 0);
  std::ofstream(folder_ + "/go") << "on";
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.failures(), 0) << "a host that leaves is no failure";
  Expect(TextOf("result"));
  EXPECT_THAT(TextOf("starts"), HasSubstr("0 of 1 at ")) << "with the ranks that are left";
}

// With copies in memory, a host that is lost costs nothing that was saved, also where it was not
// durable: another has it. What is taken up is a checkpoint then.
TEST_F(PythonScriptTest, AHostThatIsLostCostsNoSaveThatHasACopy) {
  Cluster cluster(folder_, {.workers = 2, .slots = 1, .worker_flags = {"--allow-scripts"}});
  cluster.Start();
  v1::JobSpec spec = Train();
  spec.mutable_checkpoint()->set_redundancy(1);
  std::ofstream(folder_ + "/train.py") << absl::StrReplaceAll(
      kTrainingScript, {{"step % 50 == 0", "step % 10 == 0"},
                        {"per_rank={'rank'", "durable=step % 100 == 0, per_rank={'rank'"},
                        {"    if stop: break\n",
                         "    if step == 290: milepost.checkpoint.wait()\n    if stop: break\n"}});
  const std::string job = cluster.Submit(spec);
  // It waits at step 300, and has saved 290; the newest durable save is 200's.
  cluster.Await(job,
                [](const v1::Job& now) { return IsTerminal(now) || now.progress().step() == 300; });
  cluster.KillWorker(1);
  std::filesystem::remove_all(folder_ + "/memory/1");
  cluster.StartWorker(1);
  std::ofstream(folder_ + "/go") << "on";
  const v1::Job end = cluster.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.attempts(), 2);
  EXPECT_EQ(end.progress().start_step(), 290);
  EXPECT_THAT(TextOf("starts"), AllOf(HasSubstr("0 of 2 at 290\n"), HasSubstr("1 of 2 at 290\n")));
  Expect(TextOf("result"));
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
