#include "coordinator/core/placement.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace milepost::coordinator {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::string Show(const std::vector<PlacedRank>& placed) {
  return absl::StrJoin(placed, " ", [](std::string* out, const PlacedRank& rank) {
    absl::StrAppend(out, rank.worker, rank.slot);
  });
}

struct Host {
  std::string worker;
  std::vector<int> free;
  std::string rack = "";
  bool avoided = false;
  int64_t memory = 0;
};

SlotPool MakePool(const std::vector<Host>& hosts) {
  SlotPool pool({.model = "H200"});
  for (const Host& host : hosts) {
    PoolHost made = {.worker = host.worker, .rack = host.rack, .avoided = host.avoided};
    for (const int slot : host.free) made.slots.push_back({slot, host.memory, true});
    made.slots.push_back({99, host.memory, false});
    pool.AddHost(std::move(made));
  }
  return pool;
}

TEST(PlacementTest, PacksOnTheFewestHosts) {
  struct Case {
    int ranks;
    std::vector<Host> hosts;
    std::string expected;
  };
  const Case cases[] = {
      {2, {{"a", {0, 1, 2, 3}}, {"b", {0, 1}}}, "b0 b1"},  // tightest fit
      {3, {{"a", {0, 1, 2, 3}}, {"b", {0, 1}}}, "a0 a1 a2"},
      {5, {{"a", {0, 1, 2, 3}}, {"b", {0, 1}}, {"c", {5}}}, "a0 a1 a2 a3 c5"},
      {7, {{"a", {0, 1, 2}}, {"b", {0, 1, 2}}, {"c", {0, 1}}}, "a0 a1 a2 b0 b1 b2 c0"},
      {2, {{"a", {1}}, {"b", {3}}}, "a1 b3"},
      {1, {{"a", {}}, {"b", {3}}}, "b3"},
      {2, {{"a", {1}}, {"b", {}}}, ""},  // all or none
      {1, {}, ""},
  };
  for (const Case& c : cases) {
    SlotPool pool = MakePool(c.hosts);
    const int before = pool.CountFree(0);
    const std::vector<PlacedRank> placed = pool.Find(c.ranks, 0);
    EXPECT_EQ(Show(placed), c.expected);
    pool.Take(placed);
    EXPECT_EQ(pool.CountFree(0), before - static_cast<int>(placed.size()));
  }
}

TEST(PlacementTest, GroupsOfNeighboursShareAHostWhereTheyCan) {
  const SlotPool pool = MakePool(
      {{"a", {0, 1, 2, 3, 4}}, {"b", {0, 1, 2, 3, 4}}, {"c", {0, 1, 2, 3, 4}}, {"d", {0}}});
  const std::vector<PlacedRank> placed = pool.Find(16, 0);
  EXPECT_EQ(Show(InGroups(placed, 1)), Show(placed));
  EXPECT_EQ(Show(InGroups(placed, 4)), "a0 a1 a2 a3 b0 b1 b2 b3 c0 c1 c2 c3 a4 b4 c4 d0");
  EXPECT_EQ(Show(InGroups(pool.Find(2, 0), 4)), "a0 a1") << "fewer than a group";
}

TEST(PlacementTest, ContextRanksOfAStageShareAHostWhereTheyCan) {
  const SlotPool pool = MakePool(
      {{"a", {0, 1, 2, 3, 4}}, {"b", {0, 1, 2, 3, 4}}, {"c", {0, 1, 2, 3, 4}}, {"d", {0}}});
  const std::vector<PlacedRank> placed = pool.Find(16, 0);
  EXPECT_EQ(Show(InMesh(placed, 1, 1, 1)), Show(placed));
  EXPECT_EQ(Show(InMesh(placed, 2, 2, 1)), Show(InGroups(placed, 2)));
  EXPECT_EQ(Show(InMesh(placed, 2, 1, 2)), Show(InGroups(placed, 4)));
  // Four of three times two ranks are on no host: the pairs of tensor ranks are.
  EXPECT_EQ(Show(InMesh(placed, 2, 1, 4)), Show(InGroups(placed, 2)));
  // Rank r is stage r % 2 of context rank r / 2 % 4: stages are on two hosts, context ranks on one.
  EXPECT_EQ(Show(InMesh(placed, 1, 2, 4)), "a0 b0 a1 b1 a2 b2 a3 b3 c0 a4 c1 b4 c2 c4 c3 d0");
  EXPECT_EQ(Show(InMesh(placed, 2, 2, 2)), "a0 a1 b0 b1 a2 a3 b2 b3 c0 c1 a4 b4 c2 c3 c4 d0");
}

// As attempts place them, where one number divides the other.
TEST(PlacementTest, ExpertRanksShareAHostWhereTheyCan) {
  const SlotPool pool = MakePool(
      {{"a", {0, 1, 2, 3, 4}}, {"b", {0, 1, 2, 3, 4}}, {"c", {0, 1, 2, 3, 4}}, {"d", {0}}});
  const std::vector<PlacedRank> placed = pool.Find(16, 0);
  EXPECT_EQ(Show(InMesh(InGroups(placed, 4), 1, 1, 1)), Show(InGroups(placed, 4)));
  EXPECT_EQ(Show(InMesh(InGroups(placed, 4), 1, 1, 2)), Show(InGroups(placed, 4)));
  EXPECT_EQ(Show(InMesh(InGroups(placed, 2), 1, 1, 4)), Show(InGroups(placed, 4)));
}

TEST(PlacementTest, OneRackBeforeSeveral) {
  const SlotPool pool = MakePool({{"a", {0, 1, 2, 3}, "r1"},
                                  {"b", {0, 1}, "r2"},
                                  {"c", {0, 1}, "r2"},
                                  {"d", {0, 1, 2}, "r3"},
                                  {"e", {0, 1, 2}, "r3"}});
  EXPECT_EQ(Show(pool.Find(4, 0)), "a0 a1 a2 a3");  // one host before one rack
  EXPECT_EQ(Show(pool.Find(5, 0)), "d0 d1 d2 e0 e1");
  EXPECT_EQ(Show(pool.Find(8, 0)), "d0 d1 d2 e0 e1 e2 a0 a1");  // the fullest racks first
}

// Hosts that groups have run on are lost, and others take their place.
TEST(PlacementTest, GroupsFindARackEachAgain) {
  const std::vector<std::string> last = {"a", "b", "c", "d", "e", "f"};
  const auto find = [&](const SlotPool& pool) {
    return Show(pool.FindGroups(2, 12, 0, last, false));
  };
  const SlotPool two_lost = MakePool({{"a", {0, 1}, "r1"},
                                      {"b", {0, 1}, "r1"},
                                      {"d", {0, 1}, "r2"},
                                      {"e", {0, 1}, "r2"},
                                      {"g", {0, 1}, "r1"},
                                      {"h", {0, 1}, "r2"}});
  EXPECT_EQ(find(two_lost), "a0 a1 b0 b1 g0 g1 d0 d1 e0 e1 h0 h1");
  const SlotPool one_lost = MakePool({{"a", {0, 1}, "r1"},
                                      {"b", {0, 1}, "r1"},
                                      {"d", {0, 1}, "r2"},
                                      {"e", {0, 1}, "r2"},
                                      {"f", {0, 1}, "r2"},
                                      {"g", {0, 1}, "r1"},
                                      {"h", {0, 1}, "r2"}});
  EXPECT_EQ(find(one_lost), "d0 d1 e0 e1 f0 f1 a0 a1 b0 b1 g0 g1");
  EXPECT_TRUE(two_lost.FindGroups(2, 14, 0, last, false).empty());
}

TEST(PlacementTest, AvoidedHostsComeLast) {
  const SlotPool pool = MakePool({{"a", {0, 1}, "", true}, {"b", {0}}, {"c", {0}}});
  EXPECT_EQ(Show(pool.Find(2, 0)), "b0 c0");
  EXPECT_EQ(Show(pool.Find(3, 0)), "b0 c0 a0");
  EXPECT_EQ(Show(pool.Find(4, 0)), "b0 c0 a0 a1");
}

TEST(PlacementTest, ElsewhereIsOnTheLastHostsOnlyForWantOfOthers) {
  SlotPool pool = MakePool({{"a", {0, 1}}, {"b", {0}}, {"c", {0}}, {"d", {0}, "", true}});
  const std::vector<std::string> last = {"a", "gone"};
  EXPECT_EQ(Show(pool.Find(2, 0, last)), "a0 a1");
  EXPECT_EQ(Show(pool.FindElsewhere(2, 0, last)), "b0 c0");
  EXPECT_EQ(Show(pool.FindElsewhere(3, 0, last)), "b0 c0 d0");
  EXPECT_EQ(Show(pool.FindElsewhere(4, 0, last)), "b0 c0 a0 a1");
  EXPECT_EQ(Show(pool.FindElsewhere(5, 0, last)), "b0 c0 a0 a1 d0");
  EXPECT_EQ(Show(pool.FindElsewhere(6, 0, last)), "");
  EXPECT_EQ(pool.CountGoodFree(0), 4) << "the pool is as it was";
  EXPECT_EQ(Show(pool.Find(4, 0)), "a0 a1 b0 c0");
}

TEST(PlacementTest, TakesOnlySlotsWithRoom) {
  const SlotPool pool = MakePool(
      {{"a", {0, 1, 2}, "", false, 24 * kGiB}, {"b", {0}, "", false, 80 * kGiB}, {"c", {0}}});
  EXPECT_EQ(pool.CountFree(40 * kGiB), 2);  // that c has too little was not told
  EXPECT_EQ(pool.CountUsable(40 * kGiB), 4);
  EXPECT_EQ(Show(pool.Find(2, 40 * kGiB)), "b0 c0");
  EXPECT_EQ(Show(pool.Find(3, 40 * kGiB)), "");
  SlotPool rest = pool;
  const SlotCounts taken = rest.Take(pool.Find(3, 0));
  EXPECT_EQ(taken.total, 3);
  EXPECT_EQ(taken.With(40 * kGiB), 0);
}

TEST(PlacementTest, FindsExactlyWhatIsThere) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<Host> hosts;
    std::set<std::string> free;
    for (int i = 0; i < pick(1, 6); ++i) {
      Host host = {absl::StrCat("w", i, "/"), {}, absl::StrCat("r", pick(0, 2)), pick(0, 4) == 0};
      for (int slot = 0; slot < pick(0, 4); ++slot) host.free.push_back(slot);
      for (const int slot : host.free) free.insert(absl::StrCat(host.worker, slot));
      hosts.push_back(host);
    }
    SlotPool pool = MakePool(hosts);
    while (true) {
      const int ranks = pick(1, 6);
      const std::vector<PlacedRank> placed = pool.Find(ranks, 0);
      ASSERT_EQ(placed.empty(), static_cast<int>(free.size()) < ranks);
      if (placed.empty()) break;
      ASSERT_EQ(static_cast<int>(placed.size()), ranks);
      for (const PlacedRank& rank : placed) {
        ASSERT_EQ(free.erase(absl::StrCat(rank.worker, rank.slot)), 1u);
      }
      pool.Take(placed);
      ASSERT_EQ(pool.CountFree(0), static_cast<int>(free.size()));
    }
  }
}

TEST(PlacementTest, KnowsAModelByAPartOfItsName) {
  EXPECT_TRUE(IsModel("NVIDIA H200", "h200"));
  EXPECT_TRUE(IsModel("NVIDIA H200", ""));
  EXPECT_FALSE(IsModel("NVIDIA A100", "h200"));
}

}  // namespace
}  // namespace milepost::coordinator
