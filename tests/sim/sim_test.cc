// A chunk of what `scripts/sim --seeds 1..1000` does at night.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "tests/sim/simulation.h"

namespace milepost::sim {
namespace {

TEST(SimTest, NothingIsFound) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const Options options = {.seed = seed, .hours = 12};
    const Result result = Simulate(options);
    ASSERT_EQ(result.violation, "") << Describe(options, result);
    EXPECT_GT(result.succeeded, 50) << "seed " << seed;
  }
}

// Each is found by some seed; `scripts/sim --plant all --seeds 1..1000` says by which.
class PlantTest : public ::testing::TestWithParam<Plant> {};

TEST_P(PlantTest, IsFound) {
  Options options = {.hours = 12, .workers = 20, .plant = GetParam()};
  for (options.seed = 1; options.seed <= 100; ++options.seed) {
    const Result result = Simulate(options);
    if (result.violation.empty()) continue;
    EXPECT_NE(result.checker, "");
    return;
  }
  FAIL() << PlantName(options.plant) << " was not found";
}

// But for one that takes some hundred seeds.
std::vector<Plant> FoundSoon() {
  std::vector<Plant> plants = AllPlants();
  std::erase(plants, Plant::kAcceptOldCommit);
  return plants;
}

INSTANTIATE_TEST_SUITE_P(All, PlantTest, ::testing::ValuesIn(FoundSoon()), [](const auto& info) {
  return absl::StrReplaceAll(PlantName(info.param), {{"-", "_"}});
});

// In small clusters, which have as many faults for each worker: more of it in less time.
TEST(SimTest, NothingIsFoundInSmallClustersAndEveryRarePathIsReached) {
  Probes probes;
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    const Options options = {.seed = seed, .hours = 24, .workers = 20};
    const Result result = Simulate(options);
    ASSERT_EQ(result.violation, "") << Describe(options, result);
    probes.Add(result.probes);
  }
  for (size_t i = 0; i < kProbeNames.size(); ++i) {
    EXPECT_GT(probes.Count(static_cast<Probe>(i)), 0) << kProbeNames[i];
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
