#include "engine/kernels/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Elementwise : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Elementwise);

constexpr int64_t kSizes[] = {1, 3, 7, 17, 127, 40000};

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

template <typename T>
void CheckGelu(int64_t n) {
  const auto x = RandomVector<T>(n, 1, 3.0f);
  const auto dy = RandomVector<T>(n, 2);
  std::vector<T> y(n), dx(n);
  GeluForward(x.data(), n, y.data());
  GeluBackward(x.data(), dy.data(), n, dx.data());
  constexpr double kUnit = std::is_same_v<T, float>  ? 1e-6
                           : std::is_same_v<T, bf16> ? 1.0 / 256
                                                     : 1.0 / 2048;
  for (int64_t i = 0; i < n; ++i) {
    const double v = ToFloat(x[i]);
    const double want = Gelu(v);
    ASSERT_NEAR(ToFloat(y[i]), want, kUnit * (std::abs(want) + 1e-3)) << v;
    const double slope = (Gelu(v + 1e-5) - Gelu(v - 1e-5)) / 2e-5 * ToFloat(dy[i]);
    ASSERT_NEAR(ToFloat(dx[i]), slope, 3 * kUnit * (std::abs(slope) + 1)) << v;
  }
}

TEST_P(Elementwise, GeluMatchesDefinition) {
  for (int64_t n : kSizes) {
    CheckGelu<float>(n);
    CheckGelu<bf16>(n);
    CheckGelu<f16>(n);
  }
}

TEST_P(Elementwise, GeluInPlaceAndAtTheEnds) {
  std::vector<float> x = {-1e4f, -40.0f, -10.0f, 0.0f, 10.0f, 40.0f, 1e4f, NAN};
  GeluForward(x.data(), 8, x.data());
  for (int i : {0, 1}) EXPECT_NEAR(x[i], 0.0f, 1e-20);
  EXPECT_EQ(x[3], 0.0f);
  EXPECT_EQ(x[5], 40.0f);
  EXPECT_EQ(x[6], 1e4f);
  EXPECT_TRUE(std::isnan(x[7]));
}

template <typename T>
void CheckBiasGradient(int64_t rows, int64_t width, bool accumulate) {
  const auto dy = RandomVector<T>(rows * width, 3);
  const auto before = RandomVector<float>(width, 4);
  std::vector<double> want(width);
  for (int64_t i = 0; i < rows * width; ++i) want[i % width] += ToFloat(dy[i]);
  if (accumulate) {
    for (int64_t j = 0; j < width; ++j) want[j] += before[j];
  }
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    auto db = before;
    AlignedBuffer workspace(BiasGradientWorkspaceBytes(rows, width));
    BiasGradient(dy.data(), rows, width, accumulate, db.data(), workspace.data());
    ExpectClose(db, want, 1e-5, "db");
    if (first.empty()) first = db;
    EXPECT_TRUE(SameBits(db, first));
  }
}

TEST_P(Elementwise, BiasGradientSumsRows) {
  for (int64_t rows : {1, 3, 17, 127, 2050}) {
    for (int64_t width : {1, 7, 33, 600}) {
      CheckBiasGradient<float>(rows, width, rows % 2 == 0);
      CheckBiasGradient<bf16>(rows, width, rows % 2 == 1);
      CheckBiasGradient<f16>(rows, width, rows % 2 == 1);
    }
  }
}

TEST_P(Elementwise, CastRoundsToNearestEven) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> in = {0.0f,    -0.0f, 1.0f, 1.00390625f, 1.01171875f,
                           3.4e38f, inf,   -inf, NAN,         1e-40f};
  const std::vector<uint16_t> want = {0,      0x8000, 0x3f80, 0x3f80, 0x3f82,
                                      0x7f80, 0x7f80, 0xff80, 0x7fc0, 0x0001};
  std::vector<bf16> out(in.size());
  CastToBf16(in.data(), static_cast<int64_t>(in.size()), out.data());
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(out[i].bits, want[i]) << in[i];
    EXPECT_EQ(ToBf16(in[i]).bits, want[i]) << in[i];
  }
  // A NaN whose payload lies in the lower half only, which rounding must not turn into infinity.
  in.assign(32, std::bit_cast<float>(0x7f800001u));
  out.resize(32);
  CastToBf16(in.data(), 32, out.data());
  for (bf16 h : out) EXPECT_TRUE(std::isnan(ToFloat(h)));
}

TEST_P(Elementwise, CastsAgreeWithTheScalarOnes) {
  for (int64_t n : kSizes) {
    const auto in = RandomVector<float>(n, 5, 100.0f);
    std::vector<bf16> half(n);
    std::vector<float> back(n);
    CastToBf16(in.data(), n, half.data());
    CastToFloat(half.data(), n, back.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(half[i].bits, ToBf16(in[i]).bits);
      ASSERT_EQ(back[i], ToFloat(half[i]));
    }
  }
}

TEST_P(Elementwise, AddFillScaleAccumulate) {
  for (int64_t n : kSizes) {
    const auto a = RandomVector<float>(n, 6), b = RandomVector<float>(n, 7);
    std::vector<float> sum(n), filled(n), scaled = a, total = a;
    Add(a.data(), b.data(), n, sum.data());
    Fill(filled.data(), n, 2.5f);
    Scale(scaled.data(), n, -3.0f);
    Accumulate(b.data(), n, total.data());
    const auto half = RandomVector<bf16>(n, 8);
    std::vector<bf16> doubled(n);
    Add(half.data(), half.data(), n, doubled.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(sum[i], a[i] + b[i]);
      ASSERT_EQ(filled[i], 2.5f);
      ASSERT_EQ(scaled[i], -3.0f * a[i]);
      ASSERT_EQ(total[i], a[i] + b[i]);
      ASSERT_EQ(ToFloat(doubled[i]), 2 * ToFloat(half[i]));
    }
  }
}

// Every half, and every float midway between two of them: each is what its bits say, and ties go
// to the even one.
TEST_P(Elementwise, HalvesRoundTripAndRoundToEven) {
  std::vector<f16> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = {static_cast<uint16_t>(i)};
  const auto n = static_cast<int64_t>(halves.size());
  std::vector<float> wide(halves.size());
  CastToFloat(halves.data(), n, wide.data());
  std::vector<f16> back(halves.size());
  CastToF16(wide.data(), n, back.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10) & 31, mantissa = static_cast<int>(i) & 1023;
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(wide[i]) && std::isnan(ToFloat(back[i])) &&
                  std::isnan(ToFloat(halves[i])));
      continue;
    }
    const double magnitude = exponent == 31  ? HUGE_VAL
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(wide[i], i < 32768 ? magnitude : -magnitude) << i;
    ASSERT_EQ(ToFloat(halves[i]), wide[i]) << i;
    ASSERT_EQ(back[i].bits, i);
    ASSERT_EQ(ToF16(wide[i]).bits, i);
  }
  std::vector<float> between, want;
  for (uint32_t i = 0; i + 1 < 0x7c00; ++i) {
    const float middle = (wide[i] + wide[i + 1]) / 2;
    for (float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, HUGE_VALF)}) {
      between.push_back(x);
      want.push_back(x < middle || (x == middle && i % 2 == 0) ? wide[i] : wide[i + 1]);
    }
  }
  std::vector<f16> rounded(between.size());
  CastToF16(between.data(), static_cast<int64_t>(between.size()), rounded.data());
  for (size_t i = 0; i < between.size(); ++i) {
    ASSERT_EQ(ToFloat(rounded[i]), want[i]) << between[i];
    ASSERT_EQ(ToF16(between[i]).bits, rounded[i].bits) << between[i];
    ASSERT_EQ(ToF16(-between[i]).bits, rounded[i].bits | 0x8000) << between[i];
  }
}

TEST_P(Elementwise, HalvesAtTheEndsOfTheirRange) {
  const std::vector<float> in = {65504.0f, 65519.996f,      65520.0f, 1e30f, HUGE_VALF, -65520.0f,
                                 0x1p-25f, 0x1.000002p-25f, 1e-30f,   -0.0f, NAN};
  const std::vector<uint16_t> want = {0x7bff, 0x7bff, 0x7c00, 0x7c00, 0x7c00,
                                      0xfc00, 0,      1,      0,      0x8000};
  std::vector<f16> out(in.size());
  CastToF16(in.data(), static_cast<int64_t>(in.size()), out.data());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(out[i].bits, want[i]) << in[i];
    EXPECT_EQ(ToF16(in[i]).bits, want[i]) << in[i];
  }
  EXPECT_TRUE(std::isnan(ToFloat(out.back())));
}

template <typename T>
void RowsKeepTheirPlaces(T before) {
  const auto in = RandomVector<T>(5 * 23, 9);
  std::vector<float> wide(5 * 20, -1.0f);
  CastRowsToFloat(in.data(), 23, 5, 19, wide.data(), 20);
  std::vector<T> out(5 * 23, before);
  CastRowsFromFloat(wide.data(), 20, 5, 19, out.data(), 23);
  for (int i = 0; i < 5 * 23; ++i) {
    EXPECT_EQ(out[i].bits, i % 23 < 19 ? in[i].bits : before.bits) << i;
  }
}

TEST_P(Elementwise, Rows16BitsWideKeepTheirPlaces) {
  RowsKeepTheirPlaces(ToF16(-1.0f));
  RowsKeepTheirPlaces(ToBf16(-1.0f));
}

}  // namespace
}  // namespace milepost::kernels
