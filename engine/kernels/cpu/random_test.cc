#include "engine/kernels/cpu/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "common/philox.h"
#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Random : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Random);

// What the header promises, from the scalar Philox: word (e % 64) / 16 of counter 16 (e / 64) + e
// % 16.
float Multiplier(const DropoutParams& p, uint64_t element) {
  const uint64_t counter = element / 64 * 16 + element % 16;
  const auto words =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                  static_cast<uint32_t>(p.step), static_cast<uint32_t>(p.step >> 32)},
                 PhiloxKey(p.seed, p.stream));
  return words[element % 64 / 16] >= p.p * 4294967296.0 ? 1.0f / (1.0f - p.p) : 0.0f;
}

TEST_P(Random, DropoutIsAFunctionOfTheElement) {
  for (uint64_t first : {uint64_t{0}, uint64_t{5}, uint64_t{640}, (uint64_t{1} << 40) + 63}) {
    const DropoutParams params{.p = 0.25f,
                               .seed = 7,
                               .stream = 8,
                               .step = (uint64_t{1} << 33) + 9,
                               .first_element = first};
    std::vector<float> got(1000);
    DropoutMultipliers(params, 3, 1000, got.data());
    for (uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(got[i], Multiplier(params, first + 3 + i)) << i;
  }
}

TEST_P(Random, DropoutRateAndKeys) {
  constexpr int64_t kN = 1 << 16;
  std::vector<float> base(kN), other(kN);
  const DropoutParams params{.p = 0.1f, .seed = 1, .stream = 1, .step = 1};
  DropoutMultipliers(params, 0, kN, base.data());
  const auto dropped = std::count(base.begin(), base.end(), 0.0f);
  EXPECT_NEAR(dropped / double{kN}, 0.1, 0.006);  // five standard deviations
  for (int change = 0; change < 3; ++change) {
    DropoutParams changed = params;
    (change == 0 ? changed.seed : change == 1 ? changed.stream : changed.step) = 2;
    DropoutMultipliers(changed, 0, kN, other.data());
    int64_t same = 0;
    for (int64_t i = 0; i < kN; ++i) same += base[i] == other[i];
    EXPECT_NEAR(same / double{kN}, 0.9 * 0.9 + 0.1 * 0.1, 0.01);
  }
}

TEST_P(Random, NormalHasTheRightMoments) {
  constexpr int64_t kN = 1 << 18;
  std::vector<float> x(kN);
  NormalInit(x.data(), kN, 1.0f, 2.0f, 3, 4, 0);
  double mean = 0, variance = 0, fourth = 0, pairs = 0;
  for (float value : x) mean += value / kN;
  for (int64_t i = 0; i < kN; ++i) {
    const double c = (x[i] - mean) / 2.0;
    variance += c * c / kN;
    fourth += c * c * c * c / kN;
    pairs += c * (x[i ^ 32] - mean) / 2.0 / kN;  // the other half of its Box-Muller pair
  }
  EXPECT_NEAR(mean, 1.0, 0.02);
  EXPECT_NEAR(variance, 1.0, 0.015);
  EXPECT_NEAR(fourth, 3.0, 0.12);
  EXPECT_NEAR(pairs, 0.0, 0.012);
  for (float value : x) ASSERT_TRUE(std::isfinite(value));
}

TEST_P(Random, NormalDoesNotDependOnHowItIsSplit) {
  constexpr int64_t kN = 20000;
  std::vector<float> whole(kN), parts(kN);
  NormalInit(whole.data(), kN, 0.0f, 0.02f, 1, 2, 100);
  const ThreadCount scope(3);
  for (int64_t at = 0; at < kN;) {
    const int64_t n = std::min<int64_t>(kN - at, at % 977 + 1);
    NormalInit(parts.data() + at, n, 0.0f, 0.02f, 1, 2, 100 + at);
    at += n;
  }
  EXPECT_TRUE(SameBits(whole, parts));
}

// Box and Muller's formula in fp64, of the words that the header's numbers have.
double NormalOf(uint64_t element, std::array<uint32_t, 2> key) {
  const uint64_t counter = element / 64 * 16 + element % 16;
  const auto words =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, key);
  const uint64_t pair = element % 32 / 16;
  const double u = ((words[pair] >> 8) + 1) * 0x1p-24, v = ((words[pair + 2] >> 8) + 1) * 0x1p-24;
  const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * M_PI * v;
  return radius * (element % 64 < 32 ? std::cos(angle) : std::sin(angle));
}

TEST_P(Random, NormalIsBoxMullers) {
  constexpr int64_t kN = 1 << 17;
  std::vector<float> x(kN);
  NormalInit(x.data(), kN, 0.0f, 0.5f, 3, 4, 17);
  for (int64_t i = 0; i < kN; ++i) {
    const double want = 0.5 * NormalOf(17 + i, PhiloxKey(3, 4));
    ASSERT_NEAR(x[i], want, 5e-7 * std::abs(want) + 1e-15) << i;
  }
}

// Rounding at random: to one of the two neighbours, what is exact stays, and the mean is the value.
TEST_P(Random, RoundsToBf16AtRandomWithoutBias) {
  constexpr int64_t kCount = 40000;
  for (const float value : {1.0f + 0x1p-9f, -3.0f - 0x1p-11f, 1e-30f * 1.7f, 100.3f}) {
    const std::vector<float> in(kCount, value);
    std::vector<bf16> out(kCount);
    RoundToBf16AtRandom(in.data(), kCount, {.seed = 3, .stream = 4, .step = 5}, out.data());
    const uint32_t bits = std::bit_cast<uint32_t>(value) & 0xffff0000u;
    const float low = std::bit_cast<float>(bits), high = std::bit_cast<float>(bits + 0x10000u);
    double sum = 0;
    for (const bf16 h : out) {
      ASSERT_TRUE(ToFloat(h) == low || ToFloat(h) == high) << ToFloat(h);
      sum += ToFloat(h);
    }
    // Five standard deviations of the mean.
    const double p = (double{value} - low) / (double{high} - low);
    const double deviation = std::abs(double{high} - low) * std::sqrt(p * (1 - p) / kCount);
    EXPECT_NEAR(sum / kCount, value, 5 * deviation);
  }
}

TEST_P(Random, RoundingKeepsWhatBf16Has) {
  std::vector<float> in = {0.0f, -0.0f, 1.0f, -2.5f, HUGE_VALF, -HUGE_VALF, NAN};
  std::vector<bf16> out(in.size());
  for (uint64_t step = 0; step < 50; ++step) {
    RoundToBf16AtRandom(in.data(), static_cast<int64_t>(in.size()), {.step = step}, out.data());
    for (size_t i = 0; i + 1 < in.size(); ++i) EXPECT_EQ(out[i].bits, ToBf16(in[i]).bits) << in[i];
    EXPECT_TRUE(std::isnan(ToFloat(out.back())));
  }
}

// The numbers belong to the element, not to where a call begins.
TEST_P(Random, RoundingDependsOnTheElementAlone) {
  const auto in = RandomVector<float>(1000, 6);
  const RoundingParams params{.seed = 1, .stream = 2, .step = 3, .first_element = 37};
  std::vector<bf16> whole(in.size());
  RoundToBf16AtRandom(in.data(), 1000, params, whole.data());
  for (const int64_t cut : {1, 27, 64, 500, 999}) {
    std::vector<bf16> parts(in.size());
    RoundToBf16AtRandom(in.data(), cut, params, parts.data());
    RoundingParams rest = params;
    rest.first_element += cut;
    RoundToBf16AtRandom(in.data() + cut, 1000 - cut, rest, parts.data() + cut);
    for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(parts[i].bits, whole[i].bits) << cut;
  }
  RoundingParams other = params;
  other.step = 4;
  std::vector<bf16> next(in.size());
  RoundToBf16AtRandom(in.data(), 1000, other, next.data());
  int differ = 0;
  for (size_t i = 0; i < in.size(); ++i) differ += next[i].bits != whole[i].bits;
  EXPECT_GT(differ, 100);
}

}  // namespace
}  // namespace milepost::kernels
