#include "engine/measure/cpu_bench.h"

#include "gtest/gtest.h"

namespace milepost::runtime {
namespace {

// The figures are the machine's own; what holds anywhere is that they are there and sensible.
TEST(DeviceBench, MeasuresAWholeProfile) {
  const auto profile = MeasureCpu({.name = "test",
                                   .threads = 1,
                                   .product = 128,
                                   .sequence = 64,
                                   .copy_bytes = 1 << 20,
                                   .reduce_bytes = 1 << 16,
                                   .repeats = 3});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_GT(profile->matmul.at("F32").achieved, 1e7);
  EXPECT_LT(profile->matmul.at("F32").achieved, 1e13);
  EXPECT_GT(profile->attention_fraction, 0);
  EXPECT_LE(profile->attention_fraction, 1);
  EXPECT_GT(profile->memory_bandwidth, 1e7);
  EXPECT_GT(profile->host_bandwidth, 1e5);
  EXPECT_GT(profile->collective_seconds, 0);
  EXPECT_EQ(profile->threads, 1);
  const auto back = plan::ParseProfile(plan::ProfileJson(*profile), "test.json");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(plan::ProfileJson(*back), plan::ProfileJson(*profile));
}

TEST(DeviceBench, FitsARateToTwoSizes) {
  const auto rate_at = [](const RateBySize& by_size, double size) {
    return by_size.limit * size / (size + by_size.half);
  };
  const RateBySize fitted = FitRate({.size = 16, .rate = 50}, {.size = 768, .rate = 90});
  EXPECT_DOUBLE_EQ(rate_at(fitted, 16), 50);
  EXPECT_DOUBLE_EQ(rate_at(fitted, 768), 90);
  // Small ones that are as fast make no difference.
  const RateBySize alike = FitRate({.size = 16, .rate = 91}, {.size = 768, .rate = 90});
  EXPECT_EQ(alike.limit, 90);
  EXPECT_EQ(alike.half, 0);
  // Much slower ones: as much as there can be, and the large one is what it was.
  for (const double rate : {1.0, 90.0 / 8, 12.0}) {
    const RateBySize slow = FitRate({.size = 64, .rate = rate}, {.size = 512, .rate = 90});
    EXPECT_EQ(slow.half, 256);
    EXPECT_DOUBLE_EQ(rate_at(slow, 512), 90);
  }
}

}  // namespace
}  // namespace milepost::runtime
