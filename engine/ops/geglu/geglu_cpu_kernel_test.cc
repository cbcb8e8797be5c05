#include "engine/ops/geglu/geglu_cpu_kernel.h"

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class GeGlu : public OnEveryTarget {};
MP_ON_EVERY_TARGET(GeGlu);

// The definition, in fp64.
std::vector<double> Activate(const std::vector<double>& x, int64_t width) {
  std::vector<double> y(x.size() / 2);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t at = i / width * 2 * width + i % width;
    const double g = x[at];
    const double u = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
    y[i] = 0.5 * g * (1 + std::tanh(u)) * x[at + width];
  }
  return y;
}

template <typename T>
void Check(int64_t rows, int64_t width) {
  SCOPED_TRACE(testing::Message() << rows << "x" << width << " bytes " << sizeof(T));
  const auto x = RandomVector<T>(2 * rows * width, 1, 2.0f), dy = RandomVector<T>(rows * width, 2);
  std::vector<T> y(rows * width), dx = x;
  GeGluForward(x.data(), rows, width, y.data());
  ExpectClose(y, Activate(ToDouble(x), width), kTolerance<T>, "y");
  GeGluBackward(dx.data(), dy.data(), rows, width, dx.data());  // in place
  const auto dy64 = ToDouble(dy);
  ExpectGradient(
      dx, ToDouble(x), [&](const auto& v) { return Dot(Activate(v, width), dy64); }, kTolerance<T>,
      "dx");
}

TEST_P(GeGlu, MatchesDefinition) {
  for (int64_t rows : {1, 5, 70}) {
    for (int64_t width : {1, 13, 64, 200}) {
      Check<float>(rows, width);
      Check<bf16>(rows, width);
      Check<f16>(rows, width);
    }
  }
}

TEST_P(GeGlu, LargeGatesStayFinite) {
  const std::vector<float> x = {-200.0f, 200.0f, 3.0f, 3.0f}, dy = {1.0f, 1.0f};
  std::vector<float> y(2), dx(4);
  GeGluForward(x.data(), 1, 2, y.data());
  EXPECT_NEAR(y[0], 0.0f, 1e-6);
  EXPECT_FLOAT_EQ(y[1], 600.0f);
  GeGluBackward(x.data(), dy.data(), 1, 2, dx.data());
  EXPECT_NEAR(dx[0], 0.0f, 1e-6);
  EXPECT_FLOAT_EQ(dx[1], 3.0f);
  EXPECT_FLOAT_EQ(dx[3], 200.0f);
}

}  // namespace
}  // namespace milepost::kernels
