#include "engine/ops/rope/rope_cpu_kernel.h"

#include <cmath>
#include <complex>
#include <numbers>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Rope : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Rope);

// The definition, in fp64: halves of a head as real and imaginary parts.
std::vector<double> Turn(const RopeShape& s, double theta, const std::vector<double>& x,
                         double direction) {
  std::vector<double> out = x;
  const int64_t half = s.head_dim / 2;
  for (int64_t row = 0; row < s.batch * s.sequence; ++row) {
    const int64_t position = s.positions == nullptr ? row % s.sequence : s.positions[row];
    for (int64_t h = 0; h < s.heads; ++h) {
      double* head = &out[row * s.width + h * s.head_dim];
      for (int64_t i = 0; i < half; ++i) {
        const double f = std::exp(-std::log(theta) * 2 * static_cast<double>(i) /
                                  static_cast<double>(s.head_dim));
        const double angle = direction * static_cast<double>(position) * f;
        const std::complex<double> z =
            std::complex<double>(head[i], head[half + i]) * std::polar(1.0, angle);
        head[i] = z.real();
        head[half + i] = z.imag();
      }
    }
  }
  return out;
}

template <typename T>
void Check(const RopeShape& s) {
  SCOPED_TRACE(testing::Message() << s.heads << " heads of " << s.head_dim << " in " << s.width
                                  << " bytes " << sizeof(T));
  const auto x = RandomVector<T>(s.batch * s.sequence * s.width, 1);
  std::vector<float> table(s.sequence * s.head_dim);
  RopeTable({.theta = 500}, nullptr, s.sequence, s.head_dim, table.data());
  std::vector<T> out(x.size()), back = x;
  kernels::Rope(s, x.data(), table.data(), true, out.data());
  ExpectClose(out, Turn(s, 500, ToDouble(x), 1), kTolerance<T>, "forward");
  kernels::Rope(s, back.data(), table.data(), false, back.data());  // in place
  ExpectClose(back, Turn(s, 500, ToDouble(x), -1), kTolerance<T>, "backward");
}

TEST_P(Rope, MatchesDefinition) {
  for (const RopeShape& s :
       {RopeShape{2, 5, 3 * 8, 2, 8}, RopeShape{1, 33, 6 * 24, 4, 24}, RopeShape{3, 7, 40, 1, 40},
        RopeShape{1, 70, 4 * 128, 3, 128}, RopeShape{1, 1, 16, 1, 6}}) {
    Check<float>(s);
    Check<bf16>(s);
    Check<f16>(s);
  }
}

TEST_P(Rope, PositionsMayBeGiven) {
  const std::vector<int32_t> positions = {0, 1, 2, 0, 1, 0, 4, 3};
  RopeShape s{1, 8, 24, 2, 8};
  s.positions = positions.data();
  Check<float>(s);
  Check<bf16>(s);
}

TEST_P(Rope, TablesMayBeOfAnyPositions) {
  const std::vector<int32_t> positions = {7, 0, 3};
  std::vector<float> all(8 * 16), some(3 * 16);
  RopeTable({}, nullptr, 8, 16, all.data());
  RopeTable({}, positions.data(), 3, 16, some.data());
  for (int row = 0; row < 3; ++row) {
    for (int i = 0; i < 16; ++i) EXPECT_EQ(some[row * 16 + i], all[positions[row] * 16 + i]);
  }
}

// Rotations keep what attention computes: products depend on the distance of positions only.
TEST_P(Rope, ProductsDependOnDistance) {
  const RopeShape s{1, 40, 16, 1, 16};
  std::vector<float> x(40 * 16), table(40 * 16);
  const auto once = RandomVector<float>(16, 3);
  for (size_t i = 0; i < x.size(); ++i) x[i] = once[i % 16];
  RopeTable({}, nullptr, 40, 16, table.data());
  kernels::Rope(s, x.data(), table.data(), true, x.data());
  const auto dot = [&](int a, int b) {
    double sum = 0;
    for (int i = 0; i < 16; ++i) sum += double{x[a * 16 + i]} * x[b * 16 + i];
    return sum;
  };
  EXPECT_NEAR(dot(3, 8), dot(30, 35), 1e-5);
  EXPECT_GT(std::abs(dot(3, 8) - dot(3, 20)), 1e-3);
}

// Llama 3.1's constants at head_dim 128: a short wavelength, a long one, one between.
TEST_P(Rope, StretchesLongWavelengthsAsLlama3) {
  const RopeParams params{.theta = 500000, .factor = 8};
  std::vector<float> table(2 * 128);
  RopeTable(params, nullptr, 2, 128, table.data());
  const auto frequency = [&](int i) { return std::asin(double{table[128 + 64 + i]}); };
  const auto plain = [](int i) { return std::pow(500000.0, -i / 64.0); };
  EXPECT_NEAR(frequency(20) / plain(20), 1.0, 1e-6);               // wavelength 379: kept
  EXPECT_NEAR(frequency(40) / plain(40), 1.0 / 8, 1e-6);           // wavelength 22,900: stretched
  const double turns = 8192 * plain(32) / (2 * std::numbers::pi);  // 1.84, between 1 and 4
  const double smooth = (turns - 1) / 3;
  EXPECT_NEAR(frequency(32) / plain(32), (1 - smooth) / 8 + smooth, 1e-6);
}

}  // namespace
}  // namespace milepost::kernels
