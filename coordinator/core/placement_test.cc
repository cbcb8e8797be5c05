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

}  // namespace
}  // namespace milepost::coordinator
