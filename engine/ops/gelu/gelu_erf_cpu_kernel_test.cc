#include "engine/ops/gelu/gelu_erf_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class GeluErf : public OnEveryTarget {};
MP_ON_EVERY_TARGET(GeluErf);

double Phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double Slope(double x) { return Phi(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }

template <typename T>
void Check(int64_t n, double unit) {
  const auto x = RandomVector<T>(n, 1, 3.0f);
  const auto dy = RandomVector<T>(n, 2);
  std::vector<T> y(n), dx(n);
  GeluErfForward(x.data(), n, y.data());
  GeluErfBackward(x.data(), dy.data(), n, dx.data());
  for (int64_t i = 0; i < n; ++i) {
    const double v = ToFloat(x[i]);
    const double want = v * Phi(v);
    ASSERT_NEAR(ToFloat(y[i]), want, unit * (std::abs(want) + 1e-3)) << v;
    const double slope = Slope(v) * ToFloat(dy[i]);
    ASSERT_NEAR(ToFloat(dx[i]), slope, unit * (std::abs(slope) + std::abs(ToFloat(dy[i])))) << v;
  }
}

TEST_P(GeluErf, MatchesDefinition) {
  for (int64_t n : {1, 3, 17, 127, 40000}) {
    Check<float>(n, 1e-6);
    Check<bf16>(n, 1.0 / 256);
  }
}

TEST_P(GeluErf, InPlaceAndAtTheEnds) {
  std::vector<float> x = {-1e20f, -40.0f, -14.0f, 0.0f, 10.0f, 40.0f, 1e4f, NAN};
  GeluErfForward(x.data(), 8, x.data());
  for (int i : {0, 1, 2}) EXPECT_NEAR(x[i], 0.0f, 1e-20);
  EXPECT_EQ(x[3], 0.0f);
  EXPECT_EQ(x[4], 10.0f);
  EXPECT_EQ(x[6], 1e4f);
  EXPECT_TRUE(std::isnan(x[7]));
}

}  // namespace
}  // namespace milepost::kernels
