#include "engine/comm/missing_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/comm/key_value_store.h"
#include "engine/comm/tcp.h"

namespace milepost::comm {
namespace {

using ::testing::HasSubstr;

// What each rank finds; a negative position: the rank does not come.
std::vector<std::string> Found(const std::vector<int64_t>& positions) {
  const int world = static_cast<int>(positions.size());
  const bool all = *std::min_element(positions.begin(), positions.end()) >= 0;
  auto ranks =
      MakeInProcessGroup(world, {.timeout = all ? absl::Seconds(60) : absl::Milliseconds(100)});
  std::vector<std::string> found(positions.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    if (positions[rank] < 0) continue;
    threads.emplace_back([&, rank] { found[rank] = MissingRanks(*ranks[rank], positions[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(MissingRanksTest, OneRankMissesNobody) { EXPECT_EQ(Found({7})[0], ""); }

TEST(MissingRanksTest, AllWaitAtOnePlace) {
  for (const std::string& found : Found({7, 7, 7})) {
    EXPECT_THAT(found, HasSubstr("every rank waits at the same place"));
  }
}

TEST(MissingRanksTest, ThoseBehindAreNamed) {
  for (const std::string& found : Found({8, 7, 8, 6}))
    EXPECT_EQ(found, "; ranks 1, 3 are behind the others");
  EXPECT_EQ(Found({8, 7})[1], "; rank 1 is behind the others");
}

TEST(MissingRanksTest, OneThatDoesNotComeIsMissing) {
  EXPECT_THAT(Found({7, -1, 7})[0], testing::StartsWith("; rank "));
}

// As between hosts: it is named.
TEST(MissingRanksTest, OneThatDoesNotComeIsNamedOverTcp) {
  InMemoryKeyValueStore store;
  std::vector<std::unique_ptr<Communicator>> ranks(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      TcpOptions options;
      options.communicator.timeout = absl::Milliseconds(300);
      auto made = ConnectTcp(rank, 3, &store, options);
      ASSERT_TRUE(made.ok()) << made.status();
      ranks[rank] = *std::move(made);
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  std::vector<std::string> found(3);
  for (const int rank : {0, 2}) {
    threads.emplace_back([&, rank] { found[rank] = MissingRanks(*ranks[rank], 7); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(found, testing::Contains(HasSubstr("for rank 1")));
}

}  // namespace
}  // namespace milepost::comm
