// The agent against a coordinator in this process, with this binary as its trainer.
#include "worker/agent/agent_fixture.h"

#include <gmock/gmock.h>

#include "absl/synchronization/mutex.h"

namespace milepost::worker {
namespace {

using ::testing::HasSubstr;

TEST_F(AgentTest, SaysHelloAndKeepsItsIdOverRestarts) {
  StartAgent();
  const v1::Hello first = coordinator_->AwaitHello();
  EXPECT_EQ(first.slots_size(), 2);
  EXPECT_EQ(first.slots(1).memory_bytes(), MemoryLimitBytes() / 2);
  EXPECT_EQ(first.ranks_size(), 0);
  StopAgent();
  StartAgent();
  const v1::Hello second = coordinator_->AwaitHello();
  EXPECT_EQ(second.worker_id(), first.worker_id());
  EXPECT_GT(second.incarnation(), first.incarnation());
}

// Of a process whose clock was wrong, or of somebody who had the worker's certificate.
TEST_F(AgentTest, ComesInAfterAnIncarnationFarInTheFuture) {
  coordinator_->known_incarnation_ = kMostIncarnation;
  StartAgent();
  EXPECT_EQ(coordinator_->AwaitHello().incarnation(), kMostIncarnation + 1);
  coordinator_->DropStream();
  EXPECT_EQ(coordinator_->AwaitHello().incarnation(), kMostIncarnation + 1) << "the same process";
}

TEST_F(AgentTest, IsFencedByANewerProcessOnceItWasLetIn) {
  StartAgent();
  const int64_t incarnation = coordinator_->AwaitHello().incarnation();
  coordinator_->known_incarnation_ = incarnation + 1;
  coordinator_->DropStream();
  coordinator_->AwaitRefusals(3);
  coordinator_->known_incarnation_ = incarnation;
  EXPECT_EQ(coordinator_->AwaitHello().incarnation(), incarnation);
}

TEST_F(AgentTest, SendsHeartbeatsAsOftenAsTold) {
  coordinator_->count_heartbeats_ = true;
  StartAgent();
  for (int i = 0; i < 3; ++i) {
    coordinator_->Await([](const auto& message) { return message.has_heartbeat(); });
  }
}

TEST_F(AgentTest, RunsARankToItsEnd) {
  StartAgent();
  coordinator_->AwaitHello();
  coordinator_->Say(Start("succeeds"));
  EXPECT_EQ(coordinator_->AwaitReport(v1::RANK_STATE_STARTING).slot(), 0);
  const v1::RankReport end = coordinator_->AwaitReport(v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(end.progress().step(), 3);
}

TEST_F(AgentTest, ReportsAFailureWithItsClassMessageAndLastLines) {
  StartAgent();
  coordinator_->Say(Start("fails"));
  const v1::RankReport end = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_EQ(end.exit_code(), kExitData);
  EXPECT_EQ(end.failure_class(), v1::FAILURE_CLASS_DATA);
  EXPECT_EQ(end.message(), "bad chunk 7");
  EXPECT_FALSE(end.peer_lost());
  ASSERT_GT(end.last_lines_size(), 0);
  EXPECT_EQ(end.last_lines(end.last_lines_size() - 1), "the dog ate it");
}

TEST_F(AgentTest, ReportsACrash) {
  StartAgent();
  coordinator_->Say(Start("crashes"));
  const v1::RankReport end = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_EQ(end.signal(), SIGSEGV);
  EXPECT_EQ(end.failure_class(), v1::FAILURE_CLASS_INTERNAL);
}

TEST_F(AgentTest, ForwardsLogs) {
  StartAgent(/*slots=*/1);
  coordinator_->Say(Start("fails"));
  std::set<std::string> lines;
  while (lines.count("the dog ate it") == 0) {
    const v1::WorkerMessage message =
        coordinator_->Await([](const auto& message) { return message.has_logs(); });
    ASSERT_TRUE(message.has_logs());
    for (const v1::LogLine& line : message.logs().lines()) {
      EXPECT_EQ(line.job(), "jobs/1");
      EXPECT_TRUE(line.has_time());
      lines.insert(line.text());
    }
  }
}

TEST_F(AgentTest, TellsAgainAfterEveryReconnectionUntilForgotten) {
  StartAgent();
  coordinator_->Say(Start("succeeds"));
  coordinator_->AwaitReport(v1::RANK_STATE_SUCCEEDED);
  for (int i = 0; i < 2; ++i) {
    coordinator_->DropStream();
    const v1::Hello again = coordinator_->AwaitHello();
    ASSERT_EQ(again.ranks_size(), 1);
    EXPECT_EQ(again.ranks(0).state(), v1::RANK_STATE_SUCCEEDED);
  }
  coordinator_->Say(Forget(1));
  coordinator_->Say(Start("succeeds", 2));
  coordinator_->AwaitReport(v1::RANK_STATE_SUCCEEDED);
  coordinator_->DropStream();
  const v1::Hello last = coordinator_->AwaitHello();
  ASSERT_EQ(last.ranks_size(), 1);
  EXPECT_EQ(last.ranks(0).generation(), 2);
}

TEST_F(AgentTest, RanksOutliveTheCoordinator) {
  StartAgent();
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  const std::string address = coordinator_->address();
  coordinator_.reset();
  coordinator_ = std::make_unique<FakeCoordinator>(address);
  const v1::Hello hello = coordinator_->AwaitHello();
  ASSERT_EQ(hello.ranks_size(), 1);
  EXPECT_EQ(hello.ranks(0).state(), v1::RANK_STATE_RUNNING);
  EXPECT_GE(hello.ranks(0).progress().step(), 1);
  coordinator_->Say(Stop(1, /*graceful=*/true));
  coordinator_->AwaitReport(v1::RANK_STATE_STOPPED);
}

TEST_F(AgentTest, StartingARankTwiceOnlyReportsItAgain) {
  StartAgent();
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
}

TEST_F(AgentTest, ANewerGenerationKillsTheOlderOne) {
  StartAgent();
  coordinator_->Say(Start("runs", 1));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  coordinator_->Say(Start("runs", 2));
  const v1::RankReport killed = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_EQ(killed.generation(), 1);
  EXPECT_EQ(killed.signal(), SIGKILL);
  EXPECT_TRUE(killed.peer_lost());  // not the root cause of anything
}

TEST_F(AgentTest, ForgetDoesNotLoseARankThatRuns) {
  StartAgent();
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  coordinator_->Say(Forget(1));
  coordinator_->Say(Stop(1, /*graceful=*/false));
  EXPECT_EQ(coordinator_->AwaitReport(v1::RANK_STATE_FAILED).signal(), SIGKILL);
}

TEST_F(AgentTest, LeavingStopsItsRanksAndReportsThem) {
  StartAgent();
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  agent_->RequestStop();
  coordinator_->Await([](const auto& message) { return message.has_leaving(); });
  coordinator_->AwaitReport(v1::RANK_STATE_STOPPED);
  thread_.join();
}

TEST_F(AgentTest, RefusesASlotItDoesNotHave) {
  StartAgent(/*slots=*/1);
  coordinator_->Say(Start("runs", 1, /*rank=*/5));
  const v1::RankReport refused = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_NE(refused.message().find("slot 5"), std::string::npos) << refused.message();
}

TEST_F(AgentTest, ASecondAgentOnTheSameFolderIsRefused) {
  StartAgent();
  AgentOptions options;
  options.coordinator = "127.0.0.1:1";
  options.data_dir = folder_ + "/data";
  options.trainer_binary = "/proc/self/exe";
  const absl::Status status = Agent::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(folder_), std::string::npos);
}

// As one that is stopped, or stuck in the kernel.
TEST_F(AgentTest, ARankThatGivesNoSignOfLifeIsKilled) {
  AgentOptions options;
  options.slots.count = 1;
  options.silence = absl::Milliseconds(100);
  StartAgent(options);
  coordinator_->Say(Start("waits"));
  const v1::RankReport report = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_EQ(report.failure_class(), v1::FAILURE_CLASS_HOST);
  EXPECT_THAT(report.message(), HasSubstr("gave no sign of life for 100ms (its process is "));
}

TEST_F(AgentTest, TellsHowItIsWhileItGetsOn) {
  absl::Mutex mutex;
  std::string status, wanted;
  int turns = 0;
  AgentOptions options;
  options.slots.count = 1;
  options.longest_turn = absl::Milliseconds(5);
  options.on_turn = [&](const std::string& its) {
    absl::MutexLock lock(&mutex);
    status = its;
    ++turns;
  };
  StartAgent(options);
  const auto await = [&](const std::string& text) {
    absl::MutexLock lock(&mutex);
    wanted = text;
    const auto is_there = [&] { return status == wanted; };
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(20))) << status;
  };
  const std::string address = coordinator_->address();
  await("0 ranks run; registered with " + address);
  coordinator_->Say(Start("waits"));
  await("1 rank runs; registered with " + address);
  {
    // Also with nothing to do.
    absl::MutexLock lock(&mutex);
    const int enough = turns + 20;
    const auto went_on = [&] { return turns >= enough; };
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&went_on), absl::Seconds(20)));
  }
  StopAgent();  // before what it calls
}

TEST_F(AgentTest, UnlessHangsAreNoConcern) {
  AgentOptions options;
  options.slots.count = 1;
  options.silence = absl::Milliseconds(1);
  options.settings.hang_time = absl::ZeroDuration();
  StartAgent(options);
  coordinator_->Say(Start("waits"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  coordinator_->count_heartbeats_ = true;
  for (int i = 0; i < 10; ++i) coordinator_->Await([](const auto&) { return true; });
  coordinator_->Say(Stop(1, /*graceful=*/true));
  coordinator_->AwaitReport(v1::RANK_STATE_STOPPED);
}

}  // namespace
}  // namespace milepost::worker
