#include "coordinator/core/placement.h"

#include <gtest/gtest.h>

namespace milepost::coordinator {
namespace {

std::string Show(const std::vector<PlacedRank>& placed) {
  std::string text;
  for (const PlacedRank& rank : placed) text += rank.worker + std::to_string(rank.slot) + " ";
  return text;
}

TEST(PlacementTest, PacksOnTheFewestWorkers) {
  struct Case {
    int ranks;
    FreeSlots free;
    std::string expected;
  };
  const Case cases[] = {
      {2, {{"a", {0, 1, 2, 3}}, {"b", {0, 1}}}, "b0 b1 "},  // tightest fit
      {3, {{"a", {0, 1, 2, 3}}, {"b", {0, 1}}}, "a0 a1 a2 "},
      {5, {{"a", {0, 1, 2, 3}}, {"b", {0, 1}}, {"c", {5}}}, "a0 a1 a2 a3 c5 "},
      {2, {{"a", {1}}, {"b", {3}}}, "a1 b3 "},
      {1, {{"a", {}}, {"b", {3}}}, "b3 "},
      {2, {{"a", {1}}, {"b", {}}}, ""},  // all or none
      {1, {}, ""},
  };
  for (const Case& c : cases) {
    FreeSlots free = c.free;
    EXPECT_EQ(Show(TakeSlots(c.ranks, &free)), c.expected);
    const int taken = c.expected.empty() ? 0 : c.ranks;
    EXPECT_EQ(CountSlots(free), CountSlots(c.free) - taken);
  }
}

TEST(PlacementTest, AllRanksGetOneModel) {
  struct Case {
    int ranks;
    FreeByModel free;
    std::string expected;
  };
  const Case cases[] = {
      {2, {{"A100", {{"a", {0, 1, 2, 3}}}}, {"H200", {{"b", {0, 1}}}}}, "b0 b1 "},  // tightest
      {2, {{"A100", {{"a", {0}}, {"b", {1}}}}, {"H200", {{"c", {0, 1, 2}}}}}, "c0 c1 "},  // fewest
      {2, {{"A100", {{"a", {0, 1}}}}, {"H200", {{"b", {0, 1}}}}}, "a0 a1 "},  // first by name
      {3, {{"A100", {{"a", {0, 1}}}}, {"H200", {{"b", {0, 1}}}}}, ""},        // never of two
      {3, {{"A100", {{"a", {0, 1}}}}, {"H200", {{"a", {2, 3, 4}}}}}, "a2 a3 a4 "},
      {1, {}, ""},
  };
  for (const Case& c : cases) {
    FreeByModel free = c.free;
    EXPECT_EQ(Show(TakeSlots(c.ranks, &free)), c.expected);
    int before = 0, after = 0;
    for (const auto& [model, count] : CountSlots(c.free)) before += count;
    for (const auto& [model, count] : CountSlots(free)) after += count;
    EXPECT_EQ(before - after, c.expected.empty() ? 0 : c.ranks);
  }
}

}  // namespace
}  // namespace milepost::coordinator
