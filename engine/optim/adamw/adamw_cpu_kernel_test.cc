#include "engine/optim/adamw/adamw_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/sum_squares.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/optim/lion/lion_cpu_kernel.h"
#include "engine/optim/sgd/sgd_cpu_kernel.h"

namespace milepost::kernels {
namespace {

class Optimizer : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Optimizer);

// The published update, in fp64, several steps in a row.
template <typename T>
void CheckAdamW(int64_t n, float weight_decay) {
  AdamWParams params{.learning_rate = 1e-2f,
                     .beta1 = 0.9f,
                     .beta2 = 0.95f,
                     .epsilon = 1e-8f,
                     .weight_decay = weight_decay,
                     .gradient_scale = 0.5f};
  auto p = RandomVector<float>(n, 1);
  std::vector<float> m(n), v(n);
  std::vector<T> copy(n);
  auto want_p = ToDouble(p);
  std::vector<double> want_m(n), want_v(n);
  for (int64_t step = 1; step <= 4; ++step) {
    const auto g = RandomVector<float>(n, static_cast<uint32_t>(10 + step));
    params.step = step;
    AdamW(params, n, p.data(), m.data(), v.data(), g.data(), copy.data());
    for (int64_t i = 0; i < n; ++i) {
      const double grad = 0.5 * g[i];
      want_m[i] = params.beta1 * want_m[i] + (1 - double{params.beta1}) * grad;
      want_v[i] = params.beta2 * want_v[i] + (1 - double{params.beta2}) * grad * grad;
      const double m_hat = want_m[i] / (1 - std::pow(double{params.beta1}, step));
      const double v_hat = want_v[i] / (1 - std::pow(double{params.beta2}, step));
      want_p[i] -= params.learning_rate *
                   (m_hat / (std::sqrt(v_hat) + params.epsilon) + weight_decay * want_p[i]);
    }
  }
  ExpectClose(p, want_p, 4e-6, "p");
  ExpectClose(m, want_m, 4e-6, "m");
  ExpectClose(v, want_v, 4e-6, "v");
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(ToFloat(copy[i]), ToFloat(FromFloat<T>(p[i])));
}

TEST_P(Optimizer, AdamWMatchesDefinition) {
  for (int64_t n : {1, 3, 17, 127, 33000}) {
    CheckAdamW<float>(n, 0.0f);
    CheckAdamW<bf16>(n, 0.1f);
    CheckAdamW<f16>(n, 0.1f);
  }
}

// torch.optim.SGD's definition, in fp64, several steps in a row.
template <typename T>
void CheckSgd(int64_t n, float weight_decay) {
  const SgdParams params{.learning_rate = 1e-2f,
                         .momentum = 0.9f,
                         .weight_decay = weight_decay,
                         .gradient_scale = 0.5f};
  auto p = RandomVector<float>(n, 1);
  std::vector<float> m(n);
  std::vector<T> copy(n);
  auto want_p = ToDouble(p);
  std::vector<double> want_m(n);
  for (uint32_t step = 1; step <= 4; ++step) {
    const auto g = RandomVector<float>(n, 10 + step);
    Sgd(params, n, p.data(), m.data(), g.data(), copy.data());
    for (int64_t i = 0; i < n; ++i) {
      want_m[i] = params.momentum * want_m[i] + 0.5 * g[i] + weight_decay * want_p[i];
      want_p[i] -= params.learning_rate * want_m[i];
    }
  }
  ExpectClose(p, want_p, 4e-6, "p");
  ExpectClose(m, want_m, 4e-6, "m");
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(ToFloat(copy[i]), ToFloat(FromFloat<T>(p[i])));
}

TEST_P(Optimizer, SgdMatchesDefinition) {
  for (int64_t n : {1, 3, 17, 127, 33000}) {
    CheckSgd<float>(n, 0.0f);
    CheckSgd<bf16>(n, 0.1f);
    CheckSgd<f16>(n, 0.1f);
  }
}

// Algorithm 2 of the paper, in fp64. A step's direction is a sign: where the interpolation is as
// small as rounding the two may differ, and such elements are left out.
template <typename T>
void CheckLion(int64_t n, float weight_decay) {
  const LionParams params{.learning_rate = 1e-2f,
                          .beta1 = 0.9f,
                          .beta2 = 0.99f,
                          .weight_decay = weight_decay,
                          .gradient_scale = 0.5f};
  auto p = RandomVector<float>(n, 1);
  std::vector<float> m(n);
  std::vector<T> copy(n);
  auto want_p = ToDouble(p);
  std::vector<double> want_m(n);
  std::vector<bool> close_call(n);
  for (uint32_t step = 1; step <= 4; ++step) {
    auto g = RandomVector<float>(n, 10 + step);
    g[0] = 0;  // sign(0) is 0
    Lion(params, n, p.data(), m.data(), g.data(), copy.data());
    for (int64_t i = 0; i < n; ++i) {
      const double mixed = params.beta1 * want_m[i] + (1 - double{params.beta1}) * 0.5 * g[i];
      close_call[i] = close_call[i] || (mixed != 0 && std::abs(mixed) < 1e-7);
      const double sign = mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
      want_p[i] -= params.learning_rate * (sign + weight_decay * want_p[i]);
      want_m[i] = params.beta2 * want_m[i] + (1 - double{params.beta2}) * 0.5 * g[i];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    if (close_call[i]) want_p[i] = p[i];
  }
  ExpectClose(p, want_p, 4e-6, "p");
  ExpectClose(m, want_m, 4e-6, "m");
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(ToFloat(copy[i]), ToFloat(FromFloat<T>(p[i])));
}

TEST_P(Optimizer, LionMatchesDefinition) {
  for (int64_t n : {1, 3, 17, 127, 33000}) {
    CheckLion<float>(n, 0.0f);
    CheckLion<bf16>(n, 0.1f);
    CheckLion<f16>(n, 0.1f);
  }
}

TEST_P(Optimizer, AdamWWithoutCopyOnAnyThreadCount) {
  constexpr int64_t kN = 100001;
  const auto g = RandomVector<float>(kN, 2);
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    auto p = RandomVector<float>(kN, 1);
    std::vector<float> m(kN), v(kN);
    AdamW<float>({.learning_rate = 1e-3f}, kN, p.data(), m.data(), v.data(), g.data(), nullptr);
    results.push_back(p);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

TEST_P(Optimizer, SumSquares) {
  for (int64_t n : {1, 3, 17, 4096, 100001}) {
    const auto g = RandomVector<float>(n, 3, 1e19f);  // squares that overflow fp32
    double want = 0;
    for (float value : g) want += double{value} * value;
    AlignedBuffer workspace(SumSquaresWorkspaceBytes(n));
    const ThreadCount one(1);
    const double serial = SumSquares(g.data(), n, workspace.data());
    EXPECT_NEAR(serial / want, 1.0, 1e-13);
    for (int threads : {2, 3}) {
      const ThreadCount scope(threads);
      EXPECT_EQ(SumSquares(g.data(), n, workspace.data()), serial);
    }
  }
}

TEST_P(Optimizer, SumSquaresOfBf16IsThatOfTheWidened) {
  for (int64_t n : {1, 17, 4097, 100001}) {
    const auto g = RandomVector<bf16>(n, 3);
    std::vector<float> widened(n);
    CastToFloat(g.data(), n, widened.data());
    AlignedBuffer workspace(SumSquaresWorkspaceBytes(n));
    EXPECT_EQ(SumSquares(g.data(), n, workspace.data()),
              SumSquares(widened.data(), n, workspace.data()));
  }
}

TEST_P(Optimizer, SumSquaresIsNotFiniteWhereAGradientIsNot) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (int64_t where : {0, 5000, 9998}) {
      std::vector<float> g(9999, 1.0f);
      g[where] = bad;
      AlignedBuffer workspace(SumSquaresWorkspaceBytes(9999));
      EXPECT_FALSE(std::isfinite(SumSquares(g.data(), 9999, workspace.data())));
    }
  }
}

}  // namespace
}  // namespace milepost::kernels
