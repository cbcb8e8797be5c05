#include "worker/script/script_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace milepost::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ScriptLayoutTest, RanksAreNumberedOnTheirHosts) {
  const std::vector<ScriptLayout> hosts = HostLayouts(
      {{"b", "g0"}, {"a", "g1"}, {"b", "g2"}, {"c", "g3"}, {"b", "g4"}}, "10.0.0.7", 29500);
  ASSERT_EQ(hosts.size(), 3U);
  EXPECT_EQ(hosts[0], (ScriptLayout{.rank = 0,
                                    .world = 5,
                                    .local_world = 3,
                                    .group_rank = 0,
                                    .group_world = 3,
                                    .local_gpus = {"g0", "g2", "g4"},
                                    .master_address = "10.0.0.7",
                                    .master_port = 29500}));
  EXPECT_EQ(hosts[1].rank, 1);
  EXPECT_EQ(hosts[1].local_world, 1);
  EXPECT_EQ(hosts[2].rank, 3);
  EXPECT_EQ(hosts[2].group_rank, 2);
  EXPECT_THAT(hosts[2].local_gpus, ElementsAre("g3"));
}

TEST(ScriptLayoutTest, EveryRankIsToldOfItsHost) {
  comm::InMemoryKeyValueStore store;
  const std::vector<ScriptPlace> places = {{"a", ""}, {"b", ""}, {"a", ""}, {"b", ""}};
  std::vector<absl::StatusOr<ScriptLayout>> told(4);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      told[rank] = MeetForLayout(&store, rank, 4, places[rank], "10.0.0." + std::to_string(rank),
                                 absl::Now() + absl::Minutes(1));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(told[rank].ok()) << told[rank].status();
    EXPECT_EQ(told[rank]->rank, rank);
    EXPECT_EQ(told[rank]->world, 4);
    EXPECT_EQ(told[rank]->local_rank, rank / 2);
    EXPECT_EQ(told[rank]->local_world, 2);
    EXPECT_EQ(told[rank]->group_rank, rank % 2);
    EXPECT_EQ(told[rank]->group_world, 2);
    EXPECT_EQ(told[rank]->master_address, "10.0.0.0");
    EXPECT_GT(told[rank]->master_port, 0);
    EXPECT_EQ(told[rank]->master_port, told[0]->master_port);
    EXPECT_THAT(told[rank]->local_gpus, IsEmpty());
  }
}

TEST(ScriptLayoutTest, OneRankMeetsNobody) {
  const auto layout =
      MeetForLayout(/*store=*/nullptr, 0, 1, {"a", "g"}, "127.0.0.1", absl::InfinitePast());
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->local_world, 1);
  EXPECT_THAT(layout->local_gpus, ElementsAre("g"));
  EXPECT_GT(layout->master_port, 0);
}

TEST(ScriptLayoutTest, SaysWhoDidNotCome) {
  comm::InMemoryKeyValueStore store;
  std::thread other([&] {
    MeetForLayout(&store, 1, 3, {"a", ""}, "127.0.0.1", absl::Now()).status().IgnoreError();
  });
  other.join();
  const absl::Status status =
      MeetForLayout(&store, 0, 3, {"a", ""}, "127.0.0.1", absl::Now()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 of 3 did not come"));
}

TEST(AwaitRanksTest, NobodyGoesOnBeforeAllAreThere) {
  comm::InMemoryKeyValueStore store;
  std::atomic<int> came = 0, passed = 0;
  std::vector<std::thread> ranks;
  for (const int rank : {0, 2, 1}) {
    ranks.emplace_back([&, rank] {
      ++came;
      EXPECT_TRUE(AwaitRanks(&store, rank, 3, absl::InfiniteFuture()).ok());
      EXPECT_EQ(came, 3);
      ++passed;
    });
    if (rank == 2) {
      EXPECT_EQ(passed, 0);
    }
  }
  for (std::thread& rank : ranks) rank.join();
  comm::InMemoryKeyValueStore empty;
  EXPECT_EQ(AwaitRanks(&empty, 0, 3, absl::InfinitePast()).message(), "rank 1 of 3 did not come");
}

}  // namespace
}  // namespace milepost::worker
