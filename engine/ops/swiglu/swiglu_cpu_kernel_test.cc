#include "engine/ops/swiglu/swiglu_cpu_kernel.h"

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class SwiGlu : public OnEveryTarget {};
MP_ON_EVERY_TARGET(SwiGlu);

// The definition, in fp64.
std::vector<double> Activate(const std::vector<double>& x, int64_t width) {
  std::vector<double> y(x.size() / 2);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t at = i / width * 2 * width + i % width;
    y[i] = x[at] / (1 + std::exp(-x[at])) * x[at + width];
  }
  return y;
}

template <typename T>
void Check(int64_t rows, int64_t width) {
  SCOPED_TRACE(testing::Message() << rows << "x" << width << " bytes " << sizeof(T));
  const auto x = RandomVector<T>(2 * rows * width, 1, 2.0f), dy = RandomVector<T>(rows * width, 2);
  std::vector<T> y(rows * width), dx = x;
  SwiGluForward(x.data(), rows, width, y.data());
  ExpectClose(y, Activate(ToDouble(x), width), kTolerance<T>, "y");
  SwiGluBackward(dx.data(), dy.data(), rows, width, dx.data());  // in place
  const auto dy64 = ToDouble(dy);
  ExpectGradient(
      dx, ToDouble(x), [&](const auto& v) { return Dot(Activate(v, width), dy64); }, kTolerance<T>,
      "dx");
}

TEST_P(SwiGlu, MatchesDefinition) {
  for (int64_t rows : {1, 5, 70}) {
    for (int64_t width : {1, 13, 64, 200}) {
      Check<float>(rows, width);
      Check<bf16>(rows, width);
      Check<f16>(rows, width);
    }
  }
}

TEST_P(SwiGlu, LargeGatesStayFinite) {
  const std::vector<float> x = {-200.0f, 200.0f, 3.0f, 3.0f}, dy = {1.0f, 1.0f};
  std::vector<float> y(2), dx(4);
  SwiGluForward(x.data(), 1, 2, y.data());
  EXPECT_NEAR(y[0], 0.0f, 1e-6);
  EXPECT_FLOAT_EQ(y[1], 600.0f);
  SwiGluBackward(x.data(), dy.data(), 1, 2, dx.data());
  EXPECT_NEAR(dx[0], 0.0f, 1e-6);
  EXPECT_FLOAT_EQ(dx[1], 3.0f);
  EXPECT_FLOAT_EQ(dx[3], 200.0f);
}

}  // namespace
}  // namespace milepost::kernels
