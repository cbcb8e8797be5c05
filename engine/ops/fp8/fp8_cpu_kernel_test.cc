#include "engine/ops/fp8/fp8_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "gtest/gtest.h"

namespace milepost::kernels {
namespace {

// The formats by their definition, in fp64: the magnitudes of codes 0, 1, ... up to the largest.
struct Format {
  int mantissa, bias;
  double largest;
  std::vector<double> Magnitudes() const {
    std::vector<double> magnitudes;
    for (int code = 0; code < 128; ++code) {
      const int exponent = code >> mantissa;
      const double fraction = std::ldexp(code & ((1 << mantissa) - 1), -mantissa);
      const double value = exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                         : std::ldexp(1 + fraction, exponent - bias);
      if (value > largest) break;
      magnitudes.push_back(value);
    }
    return magnitudes;
  }
  // To nearest, of two equally near the one with an even code.
  int Nearest(const std::vector<double>& magnitudes, double x) const {
    const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), x);
    if (above == magnitudes.end()) return static_cast<int>(magnitudes.size()) - 1;
    const int code = static_cast<int>(above - magnitudes.begin());
    if (code == 0) return 0;
    const double up = *above - x, down = x - magnitudes[code - 1];
    if (up != down) return up < down ? code : code - 1;
    return code % 2 == 0 ? code : code - 1;
  }
};
constexpr Format kE4M3 = {3, 7, 448};
constexpr Format kE5M2 = {2, 15, 57344};

template <typename Code>
void TestCodes(const Format& format) {
  const std::vector<double> magnitudes = format.Magnitudes();
  EXPECT_EQ(magnitudes.back(), format.largest);
  EXPECT_EQ(format.largest, kLargestOf<Code>);
  for (int code = 0; code < 256; ++code) {
    const float got = ToFloat(Code{static_cast<uint8_t>(code)});
    const size_t magnitude = code & 0x7f;
    if (magnitude < magnitudes.size()) {
      EXPECT_EQ(got, code < 128 ? magnitudes[magnitude] : -magnitudes[magnitude]) << code;
      EXPECT_EQ(std::signbit(got), code >= 128);
      EXPECT_EQ(FromFloat<Code>(got).bits, code);
      EXPECT_EQ(ToFloat(ToBf16(got)), got) << "not a number of bf16: " << code;
    } else {
      EXPECT_FALSE(std::isfinite(got)) << code;
    }
  }
}

TEST(Fp8, EveryCodeIsItsNumber) {
  TestCodes<e4m3>(kE4M3);
  TestCodes<e5m2>(kE5M2);
  EXPECT_TRUE(std::isnan(ToFloat(e4m3{0x7f})) && std::isnan(ToFloat(e4m3{0xff})));
  EXPECT_EQ(ToFloat(e5m2{0x7c}), INFINITY);
  EXPECT_EQ(ToFloat(e5m2{0xfc}), -INFINITY);
  EXPECT_TRUE(std::isnan(ToFloat(e5m2{0x7d})));
}

// Every number of bf16, and what lies just beside the middle between two codes.
template <typename Code>
void TestRounding(const Format& format) {
  const std::vector<double> magnitudes = format.Magnitudes();
  const auto check = [&](float x) {
    const int code = FromFloat<Code>(x).bits;
    if (!std::isfinite(x)) {
      EXPECT_EQ(code, kFp8NaN);
    } else {
      const int want = format.Nearest(magnitudes, std::fabs(x)) | (std::signbit(x) ? 0x80 : 0);
      EXPECT_EQ(code, want) << x;
    }
  };
  for (int bits = 0; bits < 1 << 16; ++bits) check(ToFloat(bf16{static_cast<uint16_t>(bits)}));
  for (size_t i = 1; i < magnitudes.size(); ++i) {
    const auto middle = static_cast<float>((magnitudes[i] + magnitudes[i - 1]) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1e9F)}) {
      check(x);
      check(-x);
    }
  }
  check(std::numeric_limits<float>::max());
  check(std::numeric_limits<float>::denorm_min());
}

TEST(Fp8, RoundsToNearestEvenAndSaturates) {
  TestRounding<e4m3>(kE4M3);
  TestRounding<e5m2>(kE5M2);
}

std::vector<float> NewRecord(float largest) {
  std::vector<float> record(kScalingFloats);
  InitializeScaling(largest, record.data());
  return record;
}

TEST(Fp8Scaling, IsTheLargestPowerOfTwoThatFits) {
  for (const float largest : {kLargestE4M3, kLargestE5M2}) {
    for (float amax : {1e-40F, 1e-37F, 3e-5F, 0.7F, 1.0F, 1.75F, 1.7500001F, 447.9F, 448.0F, 448.1F,
                       57344.0F, 60000.0F, 1e30F, 3e38F}) {
      std::vector<float> record = NewRecord(largest);
      UpdateScaling(amax, record.data());
      int e = 0;
      EXPECT_EQ(std::frexp(record[kScale], &e), 0.5F) << "not a power of two";
      EXPECT_EQ(record[kScale] * record[kInverse], 1) << amax;
      EXPECT_LE(double{record[kScale]} * amax, largest) << amax;
      if (e - 1 < 126) {
        EXPECT_GT(2.0 * record[kScale] * amax, largest) << amax;
      }
    }
  }
}

TEST(Fp8Scaling, RemembersSixteenSteps) {
  std::vector<float> record = NewRecord(kLargestE4M3);
  UpdateScaling(0, record.data());
  EXPECT_EQ(record[kScale], 1);
  UpdateScaling(448 * 8, record.data());
  for (int i = 0; i < kAmaxHistory - 1; ++i) {
    EXPECT_EQ(record[kScale], 0.125F) << i;
    UpdateScaling(i == 3 ? INFINITY : 7, record.data());  // counts as none
    if (i == 5) UpdateScaling(NAN, record.data());
  }
  UpdateScaling(7, record.data());  // instead of the one that is not kept
  EXPECT_EQ(record[kScale], 0.125F);
  UpdateScaling(7, record.data());
  EXPECT_EQ(record[kScale], 64);
}

template <typename Code>
void TestQuantize(int64_t rows, int64_t columns, int parts) {
  const std::vector<bf16> x = RandomVector<bf16>(rows * columns, 11);
  Stacked stacked{.rows = rows, .columns = columns};
  for (int i = 0; i < kMostStacked; ++i) {
    stacked.first_row[i] = i < parts ? i * 16 : rows;
    stacked.parts[i] = i < parts ? x.data() + stacked.first_row[i] * columns : nullptr;
  }
  std::vector<float> record = NewRecord(kLargestOf<Code>);
  SetScale(0.01F, record.data());  // some saturate
  std::vector<Code> codes(x.size()), codes_t(x.size());
  std::vector<float> slots(kAmaxSlots, NAN);
  Quantize(stacked, record.data(), true, codes.data(), codes_t.data(), slots.data());
  float amax = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const float value = ToFloat(x[r * columns + c]);
      amax = std::max(amax, std::fabs(value));
      const uint8_t want = FromFloat<Code>(value * record[kScale]).bits;
      ASSERT_EQ(codes[r * columns + c].bits, want);
      ASSERT_EQ(codes_t[c * rows + r].bits, want);
    }
  }
  EXPECT_EQ(AmaxOf(slots.data()), amax);
  slots[3] = 1000;
  Quantize<Code>(stacked, record.data(), false, nullptr, nullptr, slots.data());
  EXPECT_EQ(slots[3], 1000);
  EXPECT_EQ(*std::max_element(slots.begin(), slots.begin() + 3), amax);

  std::vector<bf16> back(x.size());
  Dequantize(codes.data(), rows * columns, record.data(), back.data());
  for (size_t i = 0; i < back.size(); ++i) {
    ASSERT_EQ(ToFloat(back[i]), ToFloat(codes[i]) * record[kInverse]);
  }
}

TEST(Fp8, QuantizesBothWays) {
  TestQuantize<e4m3>(48, 80, 3);
  TestQuantize<e5m2>(144, 16, 1);
}

TEST(Fp8, WhatIsNotFiniteBecomesNaN) {
  std::vector<bf16> x(256, ToBf16(1));
  x[7] = ToBf16(INFINITY);
  x[20] = ToBf16(NAN);
  const Stacked stacked{.parts = {x.data()}, .first_row = {0, 16, 16}, .rows = 16, .columns = 16};
  std::vector<float> record = NewRecord(kLargestE4M3), slots(kAmaxSlots);
  std::vector<e4m3> codes(256);
  Quantize<e4m3>(stacked, record.data(), true, codes.data(), nullptr, slots.data());
  EXPECT_EQ(codes[7].bits, kFp8NaN);
  EXPECT_EQ(codes[20].bits, kFp8NaN);
  EXPECT_EQ(ToFloat(codes[8]), 1);
  EXPECT_EQ(slots[0], INFINITY);
  x[7] = ToBf16(1);
  Quantize<e4m3>(stacked, record.data(), true, codes.data(), nullptr, slots.data());
  EXPECT_EQ(slots[0], INFINITY) << "of a NaN too: nothing is learned from such a step";
  const std::vector<float> before = record;
  UpdateScaling(slots[0], record.data());
  EXPECT_EQ(record, before);
}

}  // namespace
}  // namespace milepost::kernels
