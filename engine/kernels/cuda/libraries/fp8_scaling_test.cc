#include "engine/kernels/cuda/libraries/fp8_scaling.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace milepost::kernels::cuda {
namespace {

TEST(Fp8ScalingTest, IsTheLargestPowerOfTwoThatFits) {
  for (const Fp8Format format : {Fp8Format::kE4M3, Fp8Format::kE5M2}) {
    for (float amax = 1e-30f; amax < 1e30f; amax *= 1.37f) {
      Fp8Scale scale(format);
      scale.Update(amax);
      int exponent = 0;
      EXPECT_EQ(std::frexp(scale.value(), &exponent), 0.5f);
      EXPECT_LE(static_cast<double>(amax) * scale.value(), LargestOf(format));
      EXPECT_GT(2.0 * amax * scale.value(), LargestOf(format));
    }
  }
}

TEST(Fp8ScalingTest, AtTheEdgeOfAPowerOfTwo) {
  Fp8Scale scale(Fp8Format::kE4M3);
  scale.Update(448.0f);
  EXPECT_EQ(scale.value(), 1.0f);
  scale.Update(std::nextafter(448.0f, 1000.0f));
  EXPECT_EQ(scale.value(), 0.5f);
}

TEST(Fp8ScalingTest, StaysInRangeForTheSmallestAndLargestNumbers) {
  Fp8Scale scale(Fp8Format::kE5M2);
  scale.Update(std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(scale.value(), 0x1p126f);
  scale.Update(std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(1 / scale.value()));
  EXPECT_LE(std::numeric_limits<float>::max() * scale.value(), 57344.0f);
}

TEST(Fp8ScalingTest, ForgetsAnAmaxAfterSixteenSteps) {
  Fp8Scale scale(Fp8Format::kE4M3);
  scale.Update(448.0f * 8);
  for (int i = 0; i < kAmaxHistory - 1; ++i) {
    scale.Update(448.0f);
    ASSERT_EQ(scale.value(), 0.125f) << i;
  }
  scale.Update(448.0f);
  EXPECT_EQ(scale.value(), 1.0f);
}

TEST(Fp8ScalingTest, ZerosAndNumbersThatAreNotFiniteChangeNothing) {
  Fp8Scale scale(Fp8Format::kE4M3);
  scale.Update(0);
  EXPECT_EQ(scale.value(), 1.0f);
  scale.Update(448.0f * 4);
  scale.Update(std::numeric_limits<float>::infinity());
  scale.Update(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(scale.value(), 0.25f);
  for (int i = 0; i < kAmaxHistory; ++i) scale.Update(0);
  EXPECT_EQ(scale.value(), 0.25f);
}

}  // namespace
}  // namespace milepost::kernels::cuda
