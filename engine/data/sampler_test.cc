#include "engine/data/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace milepost::data {
namespace {

TEST(PermutationTest, IsABijection) {
  std::vector<uint64_t> sizes;
  for (uint64_t n = 1; n <= 130; ++n) sizes.push_back(n);
  for (uint64_t n : {255, 256, 257, 1000, 1023, 1024, 1025, 4097, 65535, 65537, 100003}) {
    sizes.push_back(n);
  }
  for (const uint64_t n : sizes) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      const Permutation permutation(n, /*seed=*/n * 17, epoch);
      std::vector<bool> seen(n);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t value = permutation(i);
        ASSERT_LT(value, n);
        ASSERT_FALSE(seen[value]) << n << " epoch " << epoch << ": " << value << " twice";
        seen[value] = true;
      }
    }
  }
}

TEST(PermutationTest, HugeSizesStayInside) {
  for (const uint64_t n : {(uint64_t{1} << 40) + 1, uint64_t{1} << 62, ~uint64_t{0}}) {
    const Permutation permutation(n, 1, 2);
    for (uint64_t i = 0; i < 100; ++i) EXPECT_LT(permutation(n - 1 - i), n);
  }
}

// The order is part of what a checkpoint relies on: these values may never change.
TEST(PermutationTest, ValuesAreFixed) {
  const Permutation permutation(1000, 42, 3);
  const std::vector<uint64_t> expected = {994, 191, 840, 664, 644, 898, 361, 908, 65, 829};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(permutation(i), expected[i]) << i;
}

// Over many seeds every position holds every value about equally often (chi-squared), also for
// sizes far from a power of four.
TEST(PermutationTest, LooksUniform) {
  for (const uint64_t n : {2, 3, 5, 8, 17}) {
    const int rounds = 2000 * static_cast<int>(n);
    std::vector<int> counts(n * n);
    for (int seed = 0; seed < rounds; ++seed) {
      const Permutation permutation(n, seed, seed % 7);
      for (uint64_t i = 0; i < n; ++i) ++counts[i * n + permutation(i)];
    }
    const double expected = static_cast<double>(rounds) / n;
    double chi_squared = 0;
    for (const int count : counts)
      chi_squared += (count - expected) * (count - expected) / expected;
    const double freedom = (n - 1.0) * (n - 1.0);
    EXPECT_LT(chi_squared, freedom + 5 * std::sqrt(2 * freedom) + 5) << n;
  }
}

TEST(PermutationTest, SeedsAndEpochsDiffer) {
  const uint64_t n = 10000;
  const Permutation a(n, 1, 0), b(n, 2, 0), c(n, 1, 1);
  int same_seed = 0, same_epoch = 0, fixed = 0, successors = 0;
  for (uint64_t i = 0; i + 1 < n; ++i) {
    same_seed += a(i) == b(i);
    same_epoch += a(i) == c(i);
    fixed += a(i) == i;
    successors += a(i + 1) == a(i) + 1;
  }
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(same_epoch, 10);
  EXPECT_LT(fixed, 10);
  EXPECT_LT(successors, 10);
}

TEST(SampleOrderTest, EveryEpochVisitsEverySampleOnce) {
  const SampleOrder order(101, 7);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int> seen(101);
    for (int64_t i = 0; i < 101; ++i) ++seen[order.SampleAt(epoch * 101 + i)];
    EXPECT_EQ(seen, std::vector<int>(101, 1));
  }
  EXPECT_EQ(order.EpochOf(100), 0);
  EXPECT_EQ(order.EpochOf(101), 1);
}

}  // namespace
}  // namespace milepost::data
