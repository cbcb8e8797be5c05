#include "engine/ops/batch_norm/batch_norm_cpu_kernel.h"

#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class BatchNorm : public OnEveryTarget {};
MP_ON_EVERY_TARGET(BatchNorm);

constexpr double kEpsilon = 1e-5;

// The definition, in fp64, from x, gamma, beta and (may be empty) the residual.
struct Definition {
  int64_t channels;
  bool relu;
  std::vector<double> residual;

  std::vector<double> operator()(const std::vector<double>& x, const std::vector<double>& gamma,
                                 const std::vector<double>& beta) const {
    const int64_t rows = static_cast<int64_t>(x.size()) / channels;
    std::vector<double> y(x.size());
    for (int64_t c = 0; c < channels; ++c) {
      double mean = 0, variance = 0;
      for (int64_t r = 0; r < rows; ++r) mean += x[r * channels + c] / rows;
      for (int64_t r = 0; r < rows; ++r) {
        variance += std::pow(x[r * channels + c] - mean, 2) / rows;
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t i = r * channels + c;
        y[i] = (x[i] - mean) / std::sqrt(variance + kEpsilon) * gamma[c] + beta[c];
        if (!residual.empty()) y[i] += residual[i];
        if (relu && y[i] < 0) y[i] = 0;
      }
    }
    return y;
  }
};

template <typename T>
struct Case {
  Case(int64_t row_count, int64_t channel_count)
      : rows(row_count),
        channels(channel_count),
        x(RandomVector<T>(rows * channels, 1)),
        residual(RandomVector<T>(rows * channels, 4)),
        dy(RandomVector<T>(rows * channels, 5)),
        dy2(RandomVector<T>(rows * channels, 6)),
        gamma(RandomVector<T>(channels, 2)),
        beta(RandomVector<T>(channels, 3, 0.3F)),
        workspace(BatchNormWorkspaceBytes(rows, channels)),
        sums(2 * channels),
        mean(channels),
        rstd(channels) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = FromFloat<T>(ToFloat(x[i]) * 2 + 3);
    BatchNormSums(x.data(), rows, channels, sums.data(), workspace.data());
    BatchNormStatistics(sums.data(), rows, channels, kEpsilon, mean.data(), rstd.data());
  }

  std::vector<T> Forward(bool relu, bool add) {
    std::vector<T> y(x.size());
    BatchNormForward<T>({.x = x.data(),
                         .mean = mean.data(),
                         .rstd = rstd.data(),
                         .gamma = gamma.data(),
                         .beta = beta.data(),
                         .residual = add ? residual.data() : nullptr,
                         .relu = relu,
                         .y = y.data()},
                        rows, channels, workspace.data());
    return y;
  }

  int64_t rows, channels;
  std::vector<T> x, residual, dy, dy2, gamma, beta;
  AlignedBuffer workspace;
  std::vector<double> sums;
  std::vector<float> mean, rstd;
};

template <typename T>
void CheckGradients(Case<T>& c, bool relu, bool add, const std::vector<T>& y) {
  BatchNormBackwardArgs<T> args{.x = c.x.data(),
                                .mean = c.mean.data(),
                                .rstd = c.rstd.data(),
                                .gamma = c.gamma.data(),
                                .beta = c.beta.data(),
                                .dy = c.dy.data(),
                                .dy2 = add ? c.dy2.data() : nullptr,
                                .relu = relu,
                                .y = add ? y.data() : nullptr};
  std::vector<double> sums(2 * c.channels);
  std::vector<float> dgamma(c.channels, 9.0F), dbeta(c.channels, 9.0F);
  std::vector<T> g(c.x.size()), dx(c.x.size());
  BatchNormBackwardSums<T>(args, c.rows, c.channels, add ? g.data() : nullptr, sums.data(),
                           dgamma.data(), dbeta.data(), false, c.workspace.data());
  if (add)
    args = {.x = args.x,
            .mean = args.mean,
            .rstd = args.rstd,
            .gamma = args.gamma,
            .beta = args.beta,
            .dy = g.data()};
  BatchNormBackward<T>(args, sums.data(), c.rows, c.rows, c.channels, dx.data(),
                       c.workspace.data());

  const Definition definition{c.channels, relu, add ? ToDouble(c.residual) : std::vector<double>()};
  const auto x = ToDouble(c.x), gamma = ToDouble(c.gamma), beta = ToDouble(c.beta);
  auto dy = ToDouble(c.dy);
  for (size_t i = 0; add && i < dy.size(); ++i) dy[i] += ToFloat(c.dy2[i]);
  const double tolerance = std::is_same_v<T, float> ? 1e-4 : 1.0 / 64;
  ExpectGradient(
      dx, x, [&](const auto& v) { return Dot(definition(v, gamma, beta), dy); }, tolerance, "dx");
  ExpectGradient(
      dgamma, gamma, [&](const auto& v) { return Dot(definition(x, v, beta), dy); }, tolerance,
      "dgamma");
  ExpectGradient(
      dbeta, beta, [&](const auto& v) { return Dot(definition(x, gamma, v), dy); }, tolerance,
      "dbeta");
  if (add) {
    Definition with = definition;
    ExpectGradient(
        g, with.residual,
        [&](const auto& v) {
          with.residual = v;
          return Dot(with(x, gamma, beta), dy);
        },
        tolerance, "dresidual");
  }
  const auto once = dgamma;
  BatchNormBackwardSums<T>(args, c.rows, c.channels, nullptr, sums.data(), dgamma.data(),
                           dbeta.data(), true, c.workspace.data());
  for (int64_t i = 0; i < c.channels; ++i) {
    ASSERT_NEAR(dgamma[i], 2 * once[i], tolerance * (1 + std::abs(once[i])) * 4);
  }
}

template <typename T>
void Check(int64_t rows, int64_t channels, bool gradients) {
  SCOPED_TRACE(testing::Message() << rows << "x" << channels << " bytes " << sizeof(T));
  Case<T> c(rows, channels);
  for (bool relu : {false, true}) {
    for (bool add : {false, true}) {
      const Definition definition{channels, relu,
                                  add ? ToDouble(c.residual) : std::vector<double>()};
      const std::vector<T> y = c.Forward(relu, add);
      ExpectClose(y, definition(ToDouble(c.x), ToDouble(c.gamma), ToDouble(c.beta)), kTolerance<T>,
                  "y");
      if (gradients) CheckGradients(c, relu, add, y);
    }
  }
}

TEST_P(BatchNorm, MatchesDefinition) {
  for (int64_t channels : {1, 5, 16, 40}) {
    for (int64_t rows : {2, 37, 100}) {
      Check<float>(rows, channels, rows == 37);
      Check<bf16>(rows, channels, rows == 37);
    }
  }
}

// A large mean beside a small variance, as after many updates: single-precision squares would lose
// it all.
TEST_P(BatchNorm, KeepsASmallVarianceBesideALargeMean) {
  constexpr int64_t kRows = 5000, kChannels = 3;
  auto x = RandomVector<float>(kRows * kChannels, 8, 0.01F);
  for (float& value : x) value += 1000.0F;
  const auto x64 = ToDouble(x);
  AlignedBuffer workspace(BatchNormWorkspaceBytes(kRows, kChannels));
  std::vector<double> sums(2 * kChannels);
  BatchNormSums(x.data(), kRows, kChannels, sums.data(), workspace.data());
  std::vector<float> mean(kChannels), rstd(kChannels);
  BatchNormStatistics(sums.data(), kRows, kChannels, 0, mean.data(), rstd.data());
  for (int64_t c = 0; c < kChannels; ++c) {
    double average = 0, variance = 0;
    for (int64_t r = 0; r < kRows; ++r) average += x64[r * kChannels + c] / kRows;
    for (int64_t r = 0; r < kRows; ++r) {
      variance += std::pow(x64[r * kChannels + c] - average, 2) / kRows;
    }
    EXPECT_NEAR(rstd[c] * std::sqrt(variance), 1, 1e-4);
  }
}

TEST_P(BatchNorm, RunningStatisticsAreTorchs) {
  // torch.nn.BatchNorm1d(1, momentum=0.1) in training mode on [[1], [2], [6]]: mean 3, unbiased
  // variance 7.
  const std::vector<double> sums = {9, 41};
  float mean = 0, variance = 1;
  BatchNormUpdateRunning(sums.data(), 3, 1, 0.1, &mean, &variance);
  EXPECT_FLOAT_EQ(mean, 0.3F);
  EXPECT_FLOAT_EQ(variance, 1.6F);
  const std::vector<double> bad = {std::numeric_limits<double>::quiet_NaN(), 41};
  BatchNormUpdateRunning(bad.data(), 3, 1, 0.1, &mean, &variance);
  EXPECT_FLOAT_EQ(mean, 0.3F);
  EXPECT_FLOAT_EQ(variance, 1.6F);
}

// Sums of the parts add up to the sums of the whole: what synchronised statistics rest on.
TEST_P(BatchNorm, SumsOfPartsAddUp) {
  constexpr int64_t kRows = 90, kChannels = 7;
  Case<float> whole(kRows, kChannels);
  std::vector<double> parts(2 * kChannels);
  for (int64_t first : {0, 20}) {
    const int64_t rows = first == 0 ? 20 : kRows - 20;
    std::vector<double> sums(2 * kChannels);
    BatchNormSums(whole.x.data() + first * kChannels, rows, kChannels, sums.data(),
                  whole.workspace.data());
    for (size_t i = 0; i < sums.size(); ++i) parts[i] += sums[i];
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_NEAR(parts[i], whole.sums[i], 1e-6 * std::abs(whole.sums[i]));
  }
}

TEST_P(BatchNorm, SameBitsOnAnyThreadCount) {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    Case<float> c(1000, 70);
    std::vector<float> all = c.Forward(true, true);
    std::vector<double> sums(2 * c.channels);
    std::vector<float> dgamma(c.channels), dbeta(c.channels), dx(c.x.size());
    const BatchNormBackwardArgs<float> args{.x = c.x.data(),
                                            .mean = c.mean.data(),
                                            .rstd = c.rstd.data(),
                                            .gamma = c.gamma.data(),
                                            .beta = c.beta.data(),
                                            .dy = c.dy.data(),
                                            .relu = true};
    BatchNormBackwardSums<float>(args, c.rows, c.channels, nullptr, sums.data(), dgamma.data(),
                                 dbeta.data(), false, c.workspace.data());
    BatchNormBackward<float>(args, sums.data(), c.rows, c.rows, c.channels, dx.data(),
                             c.workspace.data());
    for (const auto* part : {&c.mean, &c.rstd, &dgamma, &dbeta, &dx}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    results.push_back(all);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

}  // namespace
}  // namespace milepost::kernels
