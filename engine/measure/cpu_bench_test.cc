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

}  // namespace
}  // namespace milepost::runtime
