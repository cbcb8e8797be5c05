#include <gtest/gtest.h>

#include "tests/sim/simulation.h"

namespace milepost::sim {
namespace {

TEST(SimTest, NothingIsFoundInTwentyHours) {
  const Options options = {.seed = 1, .hours = 2};
  const Result result = Simulate(options);
  EXPECT_EQ(result.violation, "") << Describe(options, result);
}

}  // namespace
}  // namespace milepost::sim
