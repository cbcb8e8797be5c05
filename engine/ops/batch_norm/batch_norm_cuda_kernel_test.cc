#include "engine/ops/batch_norm/batch_norm_cuda_kernel.h"
#include "engine/ops/batch_norm/batch_norm_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/batch_norm/batch_norm_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

constexpr double kEpsilon = 1e-5;

auto Runner(uint64_t seed) {
  return [seed](const auto& kernel) { return RunAnywhere(kernel, seed); };
}

template <typename T>
struct Case {
  Case(int64_t row_count, int64_t channel_count)
      : rows(row_count),
        channels(channel_count),
        x_values(RandomVector<T>(rows * channels, 1)),
        dy_values(RandomVector<T>(rows * channels, 5)),
        dy2_values(RandomVector<T>(rows * channels, 6)),
        residual_values(RandomVector<T>(rows * channels, 4)),
        gamma_values(RandomVector<T>(channels, 2)),
        beta_values(RandomVector<T>(channels, 3, 0.3F)),
        mean_values(channels),
        rstd_values(channels) {
    for (T& x : x_values) x = FromFloat<T>(ToFloat(x) * 2 + 3);
    AlignedBuffer scratch(kernels::BatchNormWorkspaceBytes(rows, channels));
    std::vector<double> sums(2 * channels);
    kernels::BatchNormSums(x_values.data(), rows, channels, sums.data(), scratch.data());
    kernels::BatchNormStatistics(sums.data(), rows, channels, kEpsilon, mean_values.data(),
                                 rstd_values.data());
  }

  // Sums of the columns of a and of a b, both fp64.
  std::vector<double> Sums(const std::vector<double>& a, const std::vector<double>& b) const {
    std::vector<double> sums(2 * channels);
    for (size_t i = 0; i < a.size(); ++i) {
      sums[i % channels] += a[i];
      sums[channels + i % channels] += a[i] * b[i];
    }
    return sums;
  }
  int64_t Partials() const {
    return 2 * channels *
           (channels % 8 == 0 ? TileOfSums<8>(rows, channels).row_blocks()
                              : TileOfSums<1>(rows, channels).row_blocks());
  }

  int64_t rows, channels;
  std::vector<T> x_values, dy_values, dy2_values, residual_values, gamma_values, beta_values;
  std::vector<float> mean_values, rstd_values;
};

template <typename T, typename Test>
void ForSizes(const Test& test) {
  for (const int64_t channels : {8, 72, 3, 37}) {
    for (const int64_t rows : {1, 33, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << channels);
      test(Case<T>(rows, channels));
    }
  }
}

template <typename T>
void TestSums() {
  ForSizes<T>([](const Case<T>& k) {
    HostArray<T> x(k.x_values);
    std::vector<double> results[2];
    for (const int run : {0, 1}) {
      HostArray<double> sums(2 * k.channels), workspace(k.Partials());
      ASSERT_EQ(RunBatchNormSums(x.data(), k.rows, k.channels, sums.data(), workspace.data(),
                                 Runner(3 + run)),
                absl::OkStatus());
      results[run] = sums.values();
    }
    EXPECT_EQ(results[0], results[1]) << "the order of threads shows";
    const std::vector<double> want = k.Sums(ToDouble(k.x_values), ToDouble(k.x_values));
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(results[0][i], want[i], 2e-6 * std::abs(want[i]) + 2e-6) << i;
    }
  });
}

TEST(BatchNormKernels, Sums) {
  TestSums<float>();
  TestSums<bf16>();
}

// Far from zero the variance is what is left of two large sums.
TEST(BatchNormKernels, SumsOfWhatIsFarFromZero) {
  constexpr int64_t kRows = 1024, kChannels = 8;
  auto values = RandomVector<float>(kRows * kChannels, 9);
  for (float& value : values) value += 1000;
  HostArray<float> x(values);
  HostArray<double> sums(2 * kChannels), workspace(Case<float>(kRows, kChannels).Partials());
  ASSERT_EQ(RunBatchNormSums(x.data(), kRows, kChannels, sums.data(), workspace.data(), Runner(3)),
            absl::OkStatus());
  for (int64_t c = 0; c < kChannels; ++c) {
    double mean = 0, variance = 0;
    for (int64_t r = 0; r < kRows; ++r) mean += values[r * kChannels + c] / double{kRows};
    for (int64_t r = 0; r < kRows; ++r) {
      variance += std::pow(values[r * kChannels + c] - mean, 2) / double{kRows};
    }
    const double got = sums.values()[c] / double{kRows};
    EXPECT_NEAR(sums.values()[kChannels + c] / double{kRows} - got * got, variance, 1e-5);
  }
}

TEST(BatchNormKernels, StatisticsAreTheCpus) {
  constexpr int64_t kChannels = 70, kCount = 13;
  std::vector<double> sum_values(2 * kChannels);
  for (int64_t c = 0; c < kChannels; ++c) {
    sum_values[c] = static_cast<double>(c - 20) * 0.37;
    sum_values[kChannels + c] = sum_values[c] * sum_values[c] / kCount + 0.01 * c * c;
  }
  sum_values[5] = NAN;
  sum_values[kChannels + 6] = INFINITY;
  sum_values[kChannels + 7] -= 1e-12;  // a variance below 0
  for (const int64_t count : {kCount, int64_t{1}}) {
    const auto old_mean = RandomVector<float>(kChannels, 1),
               old_variance = RandomVector<float>(kChannels, 2);
    std::vector<float> want_mean(kChannels), want_rstd(kChannels);
    std::vector<float> want_running = old_mean, want_variance = old_variance;
    kernels::BatchNormStatistics(sum_values.data(), count, kChannels, kEpsilon, want_mean.data(),
                                 want_rstd.data());
    kernels::BatchNormUpdateRunning(sum_values.data(), count, kChannels, 0.1, want_running.data(),
                                    want_variance.data());
    HostArray<double> sums(sum_values);
    HostArray<float> mean(kChannels), rstd(kChannels), running(old_mean), variance(old_variance);
    HostArray<int64_t> batches(std::vector<int64_t>{41});
    RunKernel(BatchNormStatisticsKernel{{.sums = sums.data(),
                                         .count = count,
                                         .channels = kChannels,
                                         .epsilon = kEpsilon,
                                         .momentum = 0.1,
                                         .mean = mean.data(),
                                         .rstd = rstd.data(),
                                         .running_mean = running.data(),
                                         .running_variance = variance.data(),
                                         .batches = batches.data()}});
    for (int64_t c = 0; c < kChannels; ++c) {
      const auto same = [&](float got, float want) { return got == want || want != want; };
      EXPECT_TRUE(same(mean.values()[c], want_mean[c])) << c;
      EXPECT_TRUE(same(rstd.values()[c], want_rstd[c])) << c;
    }
    EXPECT_TRUE(SameBits(running.values(), want_running));
    EXPECT_TRUE(SameBits(variance.values(), want_variance));
    EXPECT_EQ(batches.values()[0], 42);
  }
}

TEST(BatchNormKernels, FromRunningStatistics) {
  constexpr int64_t kChannels = 70;
  const auto means = RandomVector<float>(kChannels, 1);
  std::vector<float> variances = RandomVector<float>(kChannels, 2);
  for (float& v : variances) v *= v;
  HostArray<float> running_mean(means), running_variance(variances), mean(kChannels),
      rstd(kChannels);
  RunKernel(BatchNormRunningKernel{running_mean.data(), running_variance.data(), kChannels,
                                   kEpsilon, mean.data(), rstd.data()});
  EXPECT_TRUE(SameBits(mean.values(), means));
  for (int64_t c = 0; c < kChannels; ++c) {
    EXPECT_EQ(rstd.values()[c], static_cast<float>(1 / std::sqrt(variances[c] + kEpsilon))) << c;
  }
}

template <typename T>
void TestForward() {
  ForSizes<T>([](const Case<T>& k) {
    HostArray<T> x(k.x_values), residual(k.residual_values), gamma(k.gamma_values),
        beta(k.beta_values);
    HostArray<float> mean(k.mean_values), rstd(k.rstd_values);
    AlignedBuffer scratch(kernels::BatchNormWorkspaceBytes(k.rows, k.channels));
    for (const bool relu : {false, true}) {
      for (const bool add : {false, true}) {
        std::vector<T> want(k.x_values.size());
        kernels::BatchNormForward<T>({.x = k.x_values.data(),
                                      .mean = k.mean_values.data(),
                                      .rstd = k.rstd_values.data(),
                                      .gamma = k.gamma_values.data(),
                                      .beta = k.beta_values.data(),
                                      .residual = add ? k.residual_values.data() : nullptr,
                                      .relu = relu,
                                      .y = want.data()},
                                     k.rows, k.channels, scratch.data());
        HostArray<T> y(x.size());
        const BatchNormForwardArgs<T> args = {.x = x.data(),
                                              .mean = mean.data(),
                                              .rstd = rstd.data(),
                                              .gamma = gamma.data(),
                                              .beta = beta.data(),
                                              .residual = add ? residual.data() : nullptr,
                                              .relu = relu,
                                              .y = y.data()};
        ASSERT_EQ(RunBatchNormForward(args, k.rows, k.channels, Runner(5)), absl::OkStatus());
        EXPECT_TRUE(SameBits(y.values(), want)) << relu << add;
      }
    }
  });
}

TEST(BatchNormKernels, ForwardIsTheCpus) {
  TestForward<float>();
  TestForward<bf16>();
}

// One way for the gradient to come in: alone or in two parts, through a ReLU or not.
template <typename T>
void TestBackward(const Case<T>& k, ReluBy relu, bool two) {
  std::vector<T> y_values(k.x_values.size());
  AlignedBuffer scratch(kernels::BatchNormWorkspaceBytes(k.rows, k.channels));
  kernels::BatchNormForward<T>(
      {k.x_values.data(), k.mean_values.data(), k.rstd_values.data(), k.gamma_values.data(),
       k.beta_values.data(), k.residual_values.data(), /*relu=*/true, y_values.data()},
      k.rows, k.channels, scratch.data());
  BatchNormBackwardArgs<T> want = {k.x_values.data(),
                                   k.mean_values.data(),
                                   k.rstd_values.data(),
                                   k.gamma_values.data(),
                                   k.beta_values.data(),
                                   k.dy_values.data(),
                                   two ? k.dy2_values.data() : nullptr,
                                   relu != ReluBy::kNone,
                                   relu == ReluBy::kOutput ? y_values.data() : nullptr};
  std::vector<T> want_g(k.x_values.size()), want_dx(k.x_values.size());
  std::vector<double> want_sums(2 * k.channels);
  std::vector<float> want_dgamma(k.channels, 0.5F), want_dbeta(k.channels, 0.25F);
  kernels::BatchNormBackwardSums<T>(want, k.rows, k.channels, want_g.data(), want_sums.data(),
                                    want_dgamma.data(), want_dbeta.data(), /*accumulate=*/two,
                                    scratch.data());
  HostArray<T> x(k.x_values), gamma(k.gamma_values), beta(k.beta_values), dy(k.dy_values),
      dy2(k.dy2_values), y(y_values), dx(x.size());
  HostArray<float> mean(k.mean_values), rstd(k.rstd_values),
      dgamma(std::vector<float>(k.channels, 0.5F)), dbeta(std::vector<float>(k.channels, 0.25F));
  HostArray<double> sums(2 * k.channels), workspace(k.Partials());
  BatchNormBackwardArgs<T> args = {x.data(),
                                   mean.data(),
                                   rstd.data(),
                                   gamma.data(),
                                   beta.data(),
                                   dy.data(),
                                   two ? dy2.data() : nullptr,
                                   want.relu,
                                   relu == ReluBy::kOutput ? y.data() : nullptr};
  T* g = two ? dy2.data() : nullptr;  // in the place of one part
  ASSERT_EQ(RunBatchNormBackwardSums(args, k.rows, g,
                                     {k.channels, two, sums.data(), dgamma.data(), dbeta.data()},
                                     workspace.data(), Runner(7)),
            absl::OkStatus());
  if (two) {
    EXPECT_TRUE(SameBits(dy2.values(), want_g));
  }
  for (size_t i = 0; i < want_sums.size(); ++i) {
    ASSERT_NEAR(sums.values()[i], want_sums[i], 1e-6 * static_cast<double>(k.rows)) << i;
  }
  ExpectNear(dgamma.values(), want_dgamma, 1e-5, 1e-6 * static_cast<double>(k.rows), "dgamma");
  ExpectNear(dbeta.values(), want_dbeta, 1e-5, 1e-6 * static_cast<double>(k.rows), "dbeta");
  if (two) {
    args.dy = dy2.data();
    args.dy2 = nullptr;
    args.relu = false;
    want.dy = want_g.data();
    want.dy2 = nullptr;
    want.relu = false;
  } else if (args.y != nullptr) {
    return;  // where y tells, g is written
  }
  HostArray<double> same_sums(want_sums);
  const int64_t count = 3 * k.rows;  // of three ranks
  kernels::BatchNormBackward<T>(want, want_sums.data(), count, k.rows, k.channels, want_dx.data(),
                                scratch.data());
  ASSERT_EQ(
      RunBatchNormBackward(args, same_sums.data(), count, k.rows, k.channels, dx.data(), Runner(9)),
      absl::OkStatus());
  EXPECT_TRUE(SameBits(dx.values(), want_dx));
}

template <typename T>
void TestBackwards() {
  ForSizes<T>([](const Case<T>& k) {
    for (const ReluBy relu : {ReluBy::kNone, ReluBy::kOutput, ReluBy::kInput}) {
      for (const bool two : {false, true}) {
        SCOPED_TRACE(testing::Message() << "relu " << static_cast<int>(relu) << ", two " << two);
        TestBackward(k, relu, two);
      }
    }
  });
}

TEST(BatchNormKernels, BackwardIsTheCpus) {
  TestBackwards<float>();
  TestBackwards<bf16>();
}

}  // namespace
}  // namespace milepost::kernels::cuda
