#include "engine/optim/lamb/lamb_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Lamb : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Lamb);

// Algorithm 2 of the paper on one tensor, in fp64, several steps in a row.
template <typename T>
void CheckLamb(int64_t n) {
  AdamWParams params{.beta1 = 0.9f,
                     .beta2 = 0.99f,
                     .epsilon = 1e-6f,
                     .weight_decay = 0.05f,
                     .gradient_scale = 0.5f};
  auto p = RandomVector<float>(n, 1);
  std::vector<float> m(n), v(n);
  std::vector<T> copy(n);
  auto want_p = ToDouble(p);
  std::vector<double> want_m(n), want_v(n), u(n);
  AlignedBuffer workspace(LambWorkspaceBytes(n));
  for (int64_t step = 1; step <= 4; ++step) {
    const auto g = RandomVector<float>(n, static_cast<uint32_t>(10 + step));
    double squares[2] = {};
    for (int64_t i = 0; i < n; ++i) {
      const double grad = 0.5 * g[i];
      want_m[i] = params.beta1 * want_m[i] + (1 - double{params.beta1}) * grad;
      want_v[i] = params.beta2 * want_v[i] + (1 - double{params.beta2}) * grad * grad;
      const double m_hat = want_m[i] / (1 - std::pow(double{params.beta1}, step));
      const double v_hat = want_v[i] / (1 - std::pow(double{params.beta2}, step));
      u[i] = m_hat / (std::sqrt(v_hat) + params.epsilon) + params.weight_decay * want_p[i];
      squares[0] += want_p[i] * want_p[i];
      squares[1] += u[i] * u[i];
    }
    params.step = step;
    double sums[2];
    LambMoments(params, n, p.data(), m.data(), v.data(), g.data(), workspace.data(), sums);
    EXPECT_NEAR(sums[0] / squares[0], 1, 1e-5);
    EXPECT_NEAR(sums[1] / squares[1], 1, 1e-5);
    params.learning_rate = static_cast<float>(0.01 * std::sqrt(squares[0] / squares[1]));
    LambApply<T>(params, n, p.data(), m.data(), v.data(), copy.data());
    for (int64_t i = 0; i < n; ++i) want_p[i] -= double{params.learning_rate} * u[i];
  }
  ExpectClose(p, want_p, 4e-6, "p");
  ExpectClose(m, want_m, 4e-6, "m");
  ExpectClose(v, want_v, 4e-6, "v");
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(ToFloat(copy[i]), ToFloat(FromFloat<T>(p[i])));
}

TEST_P(Lamb, MatchesDefinition) {
  for (int64_t n : {3, 17, 127, 4096, 33000}) {
    CheckLamb<float>(n);
    CheckLamb<bf16>(n);
  }
}

TEST_P(Lamb, SumsDoNotDependOnTheThreads) {
  constexpr int64_t kN = 100001;
  const auto g = RandomVector<float>(kN, 2);
  const auto p = RandomVector<float>(kN, 1);
  AlignedBuffer workspace(LambWorkspaceBytes(kN));
  double first[2];
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    std::vector<float> m(kN), v(kN);
    double sums[2];
    LambMoments({}, kN, p.data(), m.data(), v.data(), g.data(), workspace.data(), sums);
    if (threads == 1) std::copy_n(sums, 2, first);
    EXPECT_EQ(sums[0], first[0]);
    EXPECT_EQ(sums[1], first[1]);
  }
}

}  // namespace
}  // namespace milepost::kernels
