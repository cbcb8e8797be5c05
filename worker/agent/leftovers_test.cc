// Processes that a worker finds after its start.
#include "worker/agent/leftovers.h"

#include <gtest/gtest.h>

#include <optional>

#include "absl/time/clock.h"
#include "common/poll.h"
#include "common/subprocess.h"
#include "worker/agent/agent_fixture.h"

namespace milepost::worker {
namespace {

Subprocess Sleeper() {
  SpawnOptions spawn;
  spawn.argv = {"/bin/sleep", "1000"};
  auto child = Subprocess::Spawn(std::move(spawn));
  EXPECT_TRUE(child.ok()) << child.status();
  return *std::move(child);
}

v1::StartRank StartOf(int64_t generation, int slot) {
  v1::StartRank start = milepost::worker::Start("waits", generation).start_rank();
  start.set_slot(slot);
  return start;
}

class LeftoversTest : public testing::Test {
 protected:
  LeftoversTest() {
    folder_ = testing::TempDir() + "leftovers_XXXXXX";
    if (mkdtemp(folder_.data()) == nullptr) abort();
  }
  ~LeftoversTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(LeftoversTest, AProcessIsToldOfUntilItHasEnded) {
  Subprocess child = Sleeper();
  Subprocess ended = Sleeper();
  Subprocess gone = Sleeper();
  {
    Leftovers before(folder_);
    EXPECT_TRUE(before.Load({}).empty());
    before.Started(StartOf(1, 3), "", child.pid());
    before.Started(StartOf(2, 4), "", ended.pid());
    before.Started(StartOf(3, 5), "", gone.pid());
    before.Ended(KeyOf(StartOf(3, 5)));
  }
  ASSERT_TRUE(ended.Signal(SIGKILL).ok());
  ASSERT_TRUE(PollFd(ended.pidfd(), POLLIN, absl::InfiniteFuture()));  // not reaped: a zombie
  Leftovers after(folder_);
  const std::vector<v1::RankReport> reports = after.Load({});
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].generation(), 1);
  EXPECT_EQ(reports[0].slot(), 3);
  EXPECT_EQ(reports[0].state(), v1::RANK_STATE_STARTING);
  EXPECT_TRUE(after.Has(KeyOf(reports[0])));
  std::vector<pollfd> entries;
  after.AddPollEntries(entries);
  ASSERT_EQ(entries.size(), 1u);
  ASSERT_EQ(poll(entries.data(), 1, 20'000), 1) << "it was not killed";
  const std::vector<v1::RankReport> last = after.TakeEnded();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].state(), v1::RANK_STATE_FAILED);
  EXPECT_FALSE(after.Has(KeyOf(reports[0])));
  EXPECT_TRUE(after.TakeEnded().empty());
  EXPECT_TRUE(Leftovers(folder_).Load({}).empty());
  EXPECT_FALSE(PollFd(gone.pidfd(), POLLIN, absl::InfinitePast())) << "it was killed";
}

// In a container of its own the worker sees no process of the one before: here, one whose id is
// nobody's. The lock tells of it.
TEST_F(LeftoversTest, AProcessOfAnotherContainerIsToldOfByItsLock) {
  for (const std::string gpu : {"", "GPU-a"}) {
    std::optional<Subprocess> child;
    {
      Leftovers before(folder_);
      auto held = before.Hold(StartOf(1, 1));
      ASSERT_TRUE(held.ok()) << held.status();
      SpawnOptions spawn;
      spawn.argv = {"/bin/sleep", "1000"};
      spawn.fds = {{4, held->get()}};
      auto spawned = Subprocess::Spawn(std::move(spawn));
      ASSERT_TRUE(spawned.ok()) << spawned.status();
      child.emplace(*std::move(spawned));
      before.Started(StartOf(1, 1), gpu, child->pid());
    }
    std::stringstream text;
    text << std::ifstream(folder_ + "/rank-processes").rdbuf();
    std::string list = text.str();
    const std::string pid = std::to_string(child->pid());
    list.replace(list.rfind(" " + pid + " ") + 1, pid.size(), "2000000000");
    std::ofstream(folder_ + "/rank-processes") << list;

    Leftovers after(folder_);
    const std::vector<v1::RankReport> reports = after.Load({{"GPU-a", 1}});
    ASSERT_EQ(reports.size(), 1u) << list;
    EXPECT_EQ(reports[0].slot(), 1);
    EXPECT_TRUE(after.HasUnseen());
    std::vector<pollfd> entries;
    after.AddPollEntries(entries);
    EXPECT_TRUE(entries.empty());
    EXPECT_TRUE(after.TakeEnded().empty());
    EXPECT_FALSE(after.Hold(StartOf(1, 1)).ok()) << "it has it";
    EXPECT_TRUE(after.Hold(StartOf(2, 1)).ok()) << "of another rank";
    ASSERT_TRUE(child->Signal(SIGKILL).ok());
    ASSERT_TRUE(PollFd(child->pidfd(), POLLIN, absl::InfiniteFuture()));
    EXPECT_EQ(after.TakeEnded().size(), 1u);
    EXPECT_FALSE(after.HasUnseen());
    EXPECT_TRUE(Leftovers(folder_).Load({{"GPU-a", 1}}).empty());
  }
}

// The worker may have been started with other GPUs.
TEST_F(LeftoversTest, TheSlotIsThatOfTheGpuNow) {
  Subprocess first = Sleeper();
  Subprocess second = Sleeper();
  {
    Leftovers before(folder_);
    before.Started(StartOf(1, 0), "GPU-a", first.pid());
    before.Started(StartOf(2, 1), "GPU-b", second.pid());
  }
  Leftovers after(folder_);
  const std::vector<v1::RankReport> reports = after.Load({{"GPU-b", 0}});
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].generation(), 2);
  EXPECT_EQ(reports[0].slot(), 0);
}

TEST_F(LeftoversTest, AnotherProcessWithTheSameIdIsLeftAlone) {
  Subprocess child = Sleeper();
  {
    Leftovers before(folder_);
    before.Started(StartOf(1, 0), "", child.pid());
  }
  std::stringstream text;
  text << std::ifstream(folder_ + "/rank-processes").rdbuf();
  std::string other = text.str();
  other.insert(other.size() - 1, "7");  // a later start time
  std::ofstream(folder_ + "/rank-processes") << other << "half a lin";
  EXPECT_TRUE(Leftovers(folder_).Load({}).empty());
  std::ofstream(folder_ + "/rank-processes") << "another boot" << text.str().substr(36);
  EXPECT_TRUE(Leftovers(folder_).Load({}).empty());
  EXPECT_FALSE(PollFd(child.pidfd(), POLLIN, absl::InfinitePast())) << "it was killed";
}

using LeftoversAgentTest = AgentTest;

TEST_F(LeftoversAgentTest, TheHelloTellsOfThemAndTheirEndFollows) {
  Subprocess child = Sleeper();
  std::filesystem::create_directories(folder_ + "/data");
  Leftovers(folder_ + "/data").Started(StartOf(1, 1), "", child.pid());
  StartAgent();
  const v1::Hello hello = coordinator_->AwaitHello();
  ASSERT_EQ(hello.ranks_size(), 1);
  EXPECT_EQ(hello.ranks(0).slot(), 1);
  v1::RankReport report = hello.ranks(0);
  if (report.state() == v1::RANK_STATE_STARTING) {
    coordinator_->Say(Stop(1, /*graceful=*/false));
    report = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  }
  EXPECT_EQ(report.state(), v1::RANK_STATE_FAILED);
  EXPECT_EQ(report.slot(), 1);
  coordinator_->Say(Forget(1));
  // A rank of this process's is on the list while it runs.
  coordinator_->Say(Start("waits", 2));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  const auto list = [&] {
    std::stringstream text;
    text << std::ifstream(folder_ + "/data/rank-processes").rdbuf();
    return text.str();
  };
  EXPECT_NE(list().find("\njobs/1 2 0 0 - "), std::string::npos) << list();
  EXPECT_EQ(list().find("\njobs/1 1 "), std::string::npos) << list();
  coordinator_->Say(Stop(2, /*graceful=*/true));
  coordinator_->AwaitReport(v1::RANK_STATE_STOPPED);
  StopAgent();
  EXPECT_EQ(list().find("jobs/1"), std::string::npos) << list();
}

}  // namespace
}  // namespace milepost::worker
