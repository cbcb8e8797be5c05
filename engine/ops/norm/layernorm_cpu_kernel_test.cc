#include "engine/ops/norm/layernorm_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class LayerNorm : public OnEveryTarget {};
MP_ON_EVERY_TARGET(LayerNorm);

constexpr float kLayerNormEpsilon = 1e-5f;

std::vector<double> Normalise(const std::vector<double>& x, const std::vector<double>& gamma,
                              const std::vector<double>& beta) {
  const size_t width = gamma.size();
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size() / width; ++row) {
    const double* p = &x[row * width];
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width; ++i) mean += p[i] / width;
    for (size_t i = 0; i < width; ++i) variance += (p[i] - mean) * (p[i] - mean) / width;
    for (size_t i = 0; i < width; ++i) {
      y[row * width + i] =
          (p[i] - mean) / std::sqrt(variance + kLayerNormEpsilon) * gamma[i] + beta[i];
    }
  }
  return y;
}

template <typename T>
struct NormCase {
  NormCase(int64_t row_count, int64_t column_count)
      : rows(row_count),
        width(column_count),
        x(RandomVector<T>(rows * width, 1)),
        gamma(RandomVector<T>(width, 2)),
        beta(RandomVector<T>(width, 3)),
        dy(RandomVector<T>(rows * width, 4)),
        y(rows * width),
        mean(rows),
        rstd(rows) {
    LayerNormForward(x.data(), gamma.data(), beta.data(), rows, width, kLayerNormEpsilon, y.data(),
                     mean.data(), rstd.data());
  }

  LayerNormBackwardArgs<T> Args() {
    LayerNormBackwardArgs<T> args;
    args.dy = dy.data();
    args.x = x.data();
    args.gamma = gamma.data();
    args.mean = mean.data();
    args.rstd = rstd.data();
    return args;
  }

  int64_t rows, width;
  std::vector<T> x, gamma, beta, dy, y;
  std::vector<float> mean, rstd;
};

template <typename T>
void CheckLayerNorm(int64_t rows, int64_t width) {
  SCOPED_TRACE(testing::Message() << rows << "x" << width << " bytes " << sizeof(T));
  NormCase<T> c(rows, width);
  const auto x = ToDouble(c.x), gamma = ToDouble(c.gamma), beta = ToDouble(c.beta);
  ExpectClose(c.y, Normalise(x, gamma, beta), kTolerance<T>, "y");

  std::vector<T> dx(rows * width);
  std::vector<float> dgamma(width, 7.0f), dbeta(width, 7.0f);
  AlignedBuffer workspace(LayerNormBackwardWorkspaceBytes(rows, width));
  auto args = c.Args();
  args.dx = dx.data();
  args.dgamma = dgamma.data();
  args.dbeta = dbeta.data();
  LayerNormBackward(args, rows, width, workspace.data());
  const auto dy = ToDouble(c.dy);
  const auto by_x = [&](const auto& v) { return Dot(Normalise(v, gamma, beta), dy); };
  const auto by_gamma = [&](const auto& v) { return Dot(Normalise(x, v, beta), dy); };
  const auto by_beta = [&](const auto& v) { return Dot(Normalise(x, gamma, v), dy); };
  ExpectGradient(dx, x, by_x, kTolerance<T>, "dx");
  ExpectGradient(dgamma, gamma, by_gamma, 1e-4, "dgamma");
  ExpectGradient(dbeta, beta, by_beta, 1e-4, "dbeta");
}

TEST_P(LayerNorm, MatchesDefinition) {
  for (int64_t rows : {1, 3, 37}) {
    for (int64_t width : {3, 17, 64, 127}) {
      CheckLayerNorm<float>(rows, width);
      CheckLayerNorm<bf16>(rows, width);
      CheckLayerNorm<f16>(rows, width);
    }
  }
}

// A large offset: a one-pass variance would lose all its digits.
TEST_P(LayerNorm, LargeMean) {
  constexpr int64_t kWidth = 96;
  auto x = RandomVector<float>(kWidth, 5);
  for (float& value : x) value += 4096.0f;
  const std::vector<float> gamma(kWidth, 1.0f), beta(kWidth, 0.0f);
  std::vector<float> y(kWidth), mean(1), rstd(1);
  LayerNormForward(x.data(), gamma.data(), beta.data(), 1, kWidth, kLayerNormEpsilon, y.data(),
                   mean.data(), rstd.data());
  ExpectClose(y, Normalise(ToDouble(x), ToDouble(gamma), ToDouble(beta)), 2e-4, "y");
}

template <typename T>
void CheckResidualLayerNorm(float p, int64_t width) {
  constexpr int64_t kRows = 19;
  const int64_t n = kRows * width;
  const auto residual = RandomVector<T>(n, 6), delta = RandomVector<T>(n, 7);
  const auto gamma = RandomVector<T>(width, 8), beta = RandomVector<T>(width, 9);
  const DropoutParams dropout{.p = p, .seed = 1, .stream = 2, .step = 3, .first_element = 70};
  std::vector<T> x_out(n), y(n), expected_x(n);
  std::vector<float> mean(kRows), rstd(kRows), keep(n);
  ResidualLayerNormForward(residual.data(), delta.data(), dropout, gamma.data(), beta.data(), kRows,
                           width, kLayerNormEpsilon, x_out.data(), y.data(), mean.data(),
                           rstd.data());
  DropoutMultipliers(dropout, 0, n, keep.data());
  for (int64_t i = 0; i < n; ++i) {
    expected_x[i] = FromFloat<T>(ToFloat(residual[i]) + ToFloat(delta[i]) * keep[i]);
  }
  ASSERT_TRUE(SameBits(x_out, expected_x));
  ExpectClose(y, Normalise(ToDouble(x_out), ToDouble(gamma), ToDouble(beta)), kTolerance<T>, "y");

  // The residual path: dx = upstream + what LayerNorm gives, in place; d_delta = mask * dx.
  const auto dy = RandomVector<T>(n, 10), upstream = RandomVector<T>(n, 11);
  LayerNormBackwardArgs<T> args;
  args.dy = dy.data();
  args.x = x_out.data();
  args.gamma = gamma.data();
  args.mean = mean.data();
  args.rstd = rstd.data();
  std::vector<T> alone(n), dx = upstream, d_delta(n);
  std::vector<float> dgamma(width), dbeta(width);
  AlignedBuffer workspace(LayerNormBackwardWorkspaceBytes(kRows, width));
  args.dx = alone.data();
  args.dgamma = dgamma.data();
  args.dbeta = dbeta.data();
  LayerNormBackward(args, kRows, width, workspace.data());
  const auto once = dgamma;
  args.dx = dx.data();
  args.dx_upstream = dx.data();
  args.d_delta = d_delta.data();
  args.dropout = dropout;
  args.accumulate = true;
  LayerNormBackward(args, kRows, width, workspace.data());
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_NEAR(ToFloat(dx[i]), ToFloat(upstream[i]) + ToFloat(alone[i]),
                sizeof(T) == 4 ? 1e-6 : 0.06);
    ASSERT_EQ(ToFloat(FromFloat<T>(ToFloat(dx[i]) * keep[i])), ToFloat(d_delta[i]));
  }
  for (int64_t i = 0; i < width; ++i) ASSERT_FLOAT_EQ(dgamma[i], 2 * once[i]);
}

TEST_P(LayerNorm, ResidualAndDropout) {
  for (float p : {0.0f, 0.3f}) {
    for (int64_t width : {33, 320}) {
      CheckResidualLayerNorm<float>(p, width);
      CheckResidualLayerNorm<bf16>(p, width);
      CheckResidualLayerNorm<f16>(p, width);
    }
  }
}

TEST_P(LayerNorm, SameBitsOnAnyThreadCount) {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    NormCase<float> c(300, 130);
    std::vector<float> all(c.rows * c.width), dgamma(c.width), dbeta(c.width);
    AlignedBuffer workspace(LayerNormBackwardWorkspaceBytes(c.rows, c.width));
    auto args = c.Args();
    args.dx = all.data();
    args.dgamma = dgamma.data();
    args.dbeta = dbeta.data();
    LayerNormBackward(args, c.rows, c.width, workspace.data());
    for (const auto* part : {&dgamma, &dbeta, &c.y}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    results.push_back(all);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

}  // namespace
}  // namespace milepost::kernels
