// A chunk of what `scripts/sim --seeds 1..1000` does at night.
#include <gtest/gtest.h>

#include <string>

#include "tests/sim/simulation.h"

namespace milepost::sim {
namespace {

TEST(SimTest, NothingIsFound) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Options options = {.seed = seed, .hours = 8};
    const Result result = Simulate(options);
    ASSERT_EQ(result.violation, "") << Describe(options, result);
    EXPECT_GT(result.succeeded, 50) << "seed " << seed;
  }
}

// Fewer workers with as many faults each: more of it in less time.
TEST(SimTest, NothingIsFoundInSmallClusters) {
  for (uint64_t seed = 101; seed <= 110; ++seed) {
    const Options options = {.seed = seed, .hours = 12, .workers = 20};
    const Result result = Simulate(options);
    ASSERT_EQ(result.violation, "") << Describe(options, result);
  }
}

TEST(SimTest, TheSameSeedIsTheSameRun) {
  const Options options = {.seed = 5, .hours = 3, .workers = 50};
  const Result first = Simulate(options);
  const Result second = Simulate(options);
  EXPECT_EQ(first.hash, second.hash);
  EXPECT_EQ(first.events, second.events);
  Options other = options;
  other.seed = 6;
  EXPECT_NE(Simulate(other).hash, first.hash);
}

}  // namespace
}  // namespace milepost::sim
