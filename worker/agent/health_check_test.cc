#include "worker/agent/health_check.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "common/proto_time.h"
#include "worker/agent/agent_fixture.h"

namespace milepost::worker {
namespace {

using ::testing::HasSubstr;

std::string ProblemOfShell(const std::string& command,
                           absl::Duration patience = absl::Seconds(30)) {
  return ProblemFoundBy({"/bin/sh", "-c", command}, patience);
}

TEST(ProblemFoundByTest, NothingWhereItEndsWellWhateverItSays) {
  EXPECT_EQ(ProblemOfShell("echo fail"), "");
}

TEST(ProblemFoundByTest, TheLinesThatSaySo) {
  const std::string problem = ProblemOfShell(
      "echo 'ok    memory  fine'; echo 'fail  disk  read-only'; echo '   -> mount it';"
      "echo 'fail  GPU 0  is lost' >&2; echo '3 checks'; exit 1");
  EXPECT_THAT(problem, testing::StartsWith("disk  read-only; GPU 0  is lost ("));
  EXPECT_THAT(problem, HasSubstr("exit code 1"));
}

TEST(ProblemFoundByTest, OrTheLastOne) {
  EXPECT_THAT(ProblemOfShell("echo a; echo b; echo; exit 3"), testing::StartsWith("b ("));
  EXPECT_THAT(ProblemOfShell("kill -9 $$"), HasSubstr("killed by signal 9"));
  EXPECT_THAT(ProblemOfShell("exit 4"), testing::StartsWith("exit code 4"));
  EXPECT_THAT(ProblemFoundBy({"/no/such/program"}, absl::Seconds(1)),
              HasSubstr("/no/such/program"));
}

TEST(ProblemFoundByTest, OneThatHangsIsKilledWithWhatItStarted) {
  const std::string fifo = testing::TempDir() + "/health_fifo";
  std::filesystem::remove(fifo);
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(ProblemOfShell("echo began; cat " + fifo + "; exit 0", absl::Milliseconds(200)),
              HasSubstr("no end within 200ms"));
  // Nobody reads there any more.
  const auto nobody = [&] {
    const UniqueFd writer(open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return !writer.ok();
  };
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (!nobody() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(nobody());
  std::filesystem::remove(fifo);
}

TEST(ProblemFoundByTest, MuchOutputIsCut) {
  const std::string problem = ProblemOfShell("yes word | head -c 5000000; echo; exit 1");
  EXPECT_THAT(problem, testing::StartsWith("word"));
  EXPECT_LE(problem.size(), 1000);
}

class HealthAgentTest : public AgentTest {
 protected:
  void StartWith(const std::string& command) {
    AgentOptions options;
    options.slots.count = 1;
    options.health.command = command;
    StartAgent(options);
    coordinator_->AwaitHello();
  }
  void Ask(int64_t seconds) {
    v1::CoordinatorMessage message;
    message.mutable_check_health()->mutable_exclusion_time()->set_seconds(seconds);
    coordinator_->Say(message);
  }
  v1::HealthReport AwaitHealth() {
    return coordinator_->Await([](const auto& message) { return message.has_health_report(); })
        .health_report();
  }
};

TEST_F(HealthAgentTest, AnswersWhatItIsAsked) {
  StartWith("test -e " + folder_ + "/well || { echo not well; false; }");
  Ask(7);
  const v1::HealthReport report = AwaitHealth();
  EXPECT_THAT(report.problem(), testing::StartsWith("not well ("));
  EXPECT_EQ(report.exclusion_time().seconds(), 7);
  std::ofstream(folder_ + "/well") << "x";
  Ask(8);
  const v1::HealthReport passed = AwaitHealth();
  EXPECT_EQ(passed.problem(), "");
  EXPECT_EQ(passed.exclusion_time().seconds(), 8);
}

// Two checks would fail: the folder is there then.
TEST_F(HealthAgentTest, OneCheckAtATimeWhichAnswersTheNewestRequest) {
  StartWith("mkdir " + folder_ + "/once && cat " + folder_ + "/fifo");
  ASSERT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  Ask(7);
  UniqueFd writer(open((folder_ + "/fifo").c_str(), O_WRONLY | O_CLOEXEC));  // it runs
  Ask(8);
  // After which the agent has taken the second request too.
  coordinator_->Say(Start("succeeds"));
  coordinator_->AwaitReport(v1::RANK_STATE_STARTING);
  writer.Reset();
  const v1::HealthReport report = AwaitHealth();
  EXPECT_EQ(report.problem(), "");
  EXPECT_EQ(report.exclusion_time().seconds(), 8);
}

TEST_F(HealthAgentTest, ACheckThatHangsHoldsNoWorker) {
  StartWith("cat " + folder_ + "/fifo");
  ASSERT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  Ask(7);
  const UniqueFd writer(open((folder_ + "/fifo").c_str(), O_WRONLY | O_CLOEXEC));  // it runs
  StopAgent();
}

}  // namespace
}  // namespace milepost::worker
