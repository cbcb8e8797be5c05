#include "engine/ops/norm/rmsnorm_cpu_kernel.h"

#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class RmsNorm : public OnEveryTarget {};
MP_ON_EVERY_TARGET(RmsNorm);

constexpr float kRmsNormEpsilon = 1e-3f;

// The definition, in fp64.
std::vector<double> Normalise(const RmsNormShape& s, const std::vector<double>& x,
                              const std::vector<double>& gamma) {
  const size_t width = gamma.size();
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size() / width; ++row) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += x[row * width + i] * x[row * width + i];
    const double rms = std::sqrt(squares / static_cast<double>(width) + kRmsNormEpsilon);
    for (size_t i = 0; i < width; ++i) {
      y[row * width + i] = x[row * width + i] / rms * (s.gamma_offset + gamma[i]);
    }
  }
  return y;
}

template <typename T>
void CheckRmsNorm(int64_t rows, int64_t width, float offset = 0) {
  SCOPED_TRACE(testing::Message() << rows << "x" << width << " bytes " << sizeof(T));
  const RmsNormShape s{rows, width, kRmsNormEpsilon, offset};
  const int64_t n = rows * width;
  const auto x = RandomVector<T>(n, 1), gamma = RandomVector<T>(width, 2);
  const auto dy = RandomVector<T>(n, 3);
  std::vector<T> y(n), dx(n);
  std::vector<float> rstd(rows), dgamma(width, 7.0f);
  RmsNormForward(s, x.data(), gamma.data(), y.data(), rstd.data());
  ExpectClose(y, Normalise(s, ToDouble(x), ToDouble(gamma)), kTolerance<T>, "y");

  AlignedBuffer workspace(RmsNormBackwardWorkspaceBytes(rows, width));
  RmsNormBackwardArgs<T> args{.x = x.data(),
                              .gamma = gamma.data(),
                              .rstd = rstd.data(),
                              .dy = dy.data(),
                              .dx = dx.data(),
                              .dgamma = dgamma.data()};
  RmsNormBackward(s, args, workspace.data());
  const auto x64 = ToDouble(x), gamma64 = ToDouble(gamma), dy64 = ToDouble(dy);
  ExpectGradient(
      dx, x64, [&](const auto& v) { return Dot(Normalise(s, v, gamma64), dy64); }, kTolerance<T>,
      "dx");
  ExpectGradient(
      dgamma, gamma64, [&](const auto& v) { return Dot(Normalise(s, x64, v), dy64); }, 1e-4,
      "dgamma");

  // Again with the residual's gradient, in place, and dgamma added to.
  const auto alone = ToDouble(dx);
  const auto once = ToDouble(dgamma);
  const auto upstream = RandomVector<T>(n, 4);
  dx = upstream;
  args.dx_upstream = dx.data();
  args.accumulate = true;
  RmsNormBackward(s, args, workspace.data());
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_NEAR(ToFloat(dx[i]), ToFloat(upstream[i]) + alone[i],
                kTolerance<T> * (1 + std::abs(alone[i])));
  }
  for (int64_t i = 0; i < width; ++i) ASSERT_FLOAT_EQ(dgamma[i], 2 * once[i]);
}

TEST_P(RmsNorm, MatchesDefinition) {
  for (int64_t rows : {1, 3, 37}) {
    for (int64_t width : {3, 17, 64, 127, 200}) {
      CheckRmsNorm<float>(rows, width);
      CheckRmsNorm<bf16>(rows, width);
      CheckRmsNorm<f16>(rows, width);
      CheckRmsNorm<float>(rows, width, 1);
      CheckRmsNorm<bf16>(rows, width, 1);
    }
  }
}

template <typename T>
void CheckResidualRmsNorm(int64_t rows, int64_t width) {
  const int64_t n = rows * width;
  const auto residual = RandomVector<T>(n, 6), delta = RandomVector<T>(n, 7);
  const auto gamma = RandomVector<T>(width, 8);
  std::vector<T> sum = delta, y(n), expected(n);  // in place of delta
  std::vector<float> rstd(rows);
  const RmsNormShape s{rows, width, kRmsNormEpsilon, 1};
  ResidualRmsNormForward(s, residual.data(), sum.data(), gamma.data(), sum.data(), y.data(),
                         rstd.data());
  for (int64_t i = 0; i < n; ++i) {
    expected[i] = FromFloat<T>(ToFloat(residual[i]) + ToFloat(delta[i]));
  }
  ASSERT_TRUE(SameBits(sum, expected));
  ExpectClose(y, Normalise(s, ToDouble(sum), ToDouble(gamma)), kTolerance<T>, "y");
}

TEST_P(RmsNorm, AddsTheResidual) {
  for (int64_t width : {33, 320}) {
    CheckResidualRmsNorm<float>(19, width);
    CheckResidualRmsNorm<bf16>(19, width);
    CheckResidualRmsNorm<f16>(19, width);
  }
}

// Columns [3, 3 + width) of wider rows, in place; what lies beside them stays.
template <typename T>
void CheckColumns(int64_t rows, int64_t width) {
  const int64_t stride = width + 8;
  const RmsNormShape packed = {rows, width, kRmsNormEpsilon, 1};
  const RmsNormShape columns = {rows, width, kRmsNormEpsilon, 1, stride};
  const auto gamma = RandomVector<T>(width, 2);
  const auto x = RandomVector<T>(rows * stride, 1), dy = RandomVector<T>(rows * stride, 3);
  const auto pick = [&](const std::vector<T>& from) {
    std::vector<T> out(rows * width);
    for (int64_t i = 0; i < rows * width; ++i) out[i] = from[i / width * stride + 3 + i % width];
    return out;
  };
  const auto put = [&](const std::vector<T>& values, std::vector<T> into) {
    for (int64_t i = 0; i < rows * width; ++i) into[i / width * stride + 3 + i % width] = values[i];
    return into;
  };
  const std::vector<T> x_alone = pick(x), dy_alone = pick(dy);
  std::vector<T> y(rows * width), dx(rows * width), y_columns = x, dx_columns = dy;
  std::vector<float> rstd(rows), rstd_columns(rows), dgamma(width), dgamma_columns(width);
  RmsNormForward(packed, x_alone.data(), gamma.data(), y.data(), rstd.data());
  RmsNormForward(columns, y_columns.data() + 3, gamma.data(), y_columns.data() + 3,
                 rstd_columns.data());
  EXPECT_TRUE(SameBits(y_columns, put(y, x)));
  EXPECT_TRUE(SameBits(rstd_columns, rstd));
  AlignedBuffer workspace(RmsNormBackwardWorkspaceBytes(rows, width));
  const RmsNormBackwardArgs<T> alone = {.x = x_alone.data(),
                                        .gamma = gamma.data(),
                                        .rstd = rstd.data(),
                                        .dy = dy_alone.data(),
                                        .dx = dx.data(),
                                        .dgamma = dgamma.data()};
  RmsNormBackward(packed, alone, workspace.data());
  const RmsNormBackwardArgs<T> within = {.x = x.data() + 3,
                                         .gamma = gamma.data(),
                                         .rstd = rstd.data(),
                                         .dy = dx_columns.data() + 3,
                                         .dx = dx_columns.data() + 3,
                                         .dgamma = dgamma_columns.data()};
  RmsNormBackward(columns, within, workspace.data());
  EXPECT_TRUE(SameBits(dx_columns, put(dx, dy)));
  EXPECT_TRUE(SameBits(dgamma_columns, dgamma));
}

TEST_P(RmsNorm, OfColumnsOfWiderRows) {
  for (int64_t width : {5, 64, 130}) {
    CheckColumns<float>(19, width);
    CheckColumns<bf16>(19, width);
    CheckColumns<f16>(19, width);
  }
}

TEST_P(RmsNorm, NanStaysInItsRow) {
  std::vector<float> x(2 * 20, 1.0f), gamma(20, 1.0f), y(40), rstd(2);
  x[7] = std::numeric_limits<float>::quiet_NaN();
  RmsNormForward<float>({2, 20, kRmsNormEpsilon}, x.data(), gamma.data(), y.data(), rstd.data());
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(std::isfinite(y[20]));
}

TEST_P(RmsNorm, SameBitsOnAnyThreadCount) {
  constexpr int64_t kRows = 300, kWidth = 130;
  const auto x = RandomVector<float>(kRows * kWidth, 1), gamma = RandomVector<float>(kWidth, 2);
  const auto dy = RandomVector<float>(kRows * kWidth, 3);
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    std::vector<float> y(kRows * kWidth), dx(kRows * kWidth), rstd(kRows), dgamma(kWidth);
    const RmsNormShape s{kRows, kWidth, kRmsNormEpsilon};
    RmsNormForward(s, x.data(), gamma.data(), y.data(), rstd.data());
    AlignedBuffer workspace(RmsNormBackwardWorkspaceBytes(kRows, kWidth));
    RmsNormBackward<float>(s,
                           {.x = x.data(),
                            .gamma = gamma.data(),
                            .rstd = rstd.data(),
                            .dy = dy.data(),
                            .dx = dx.data(),
                            .dgamma = dgamma.data()},
                           workspace.data());
    std::vector<float> all = dgamma;
    all.insert(all.end(), y.begin(), y.end());
    all.insert(all.end(), dx.begin(), dx.end());
    results.push_back(all);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

}  // namespace
}  // namespace milepost::kernels
