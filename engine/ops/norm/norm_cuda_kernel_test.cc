#include "engine/ops/norm/norm_dispatch_cuda_kernel-inl.h"

#include <gtest/gtest.h>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/norm/layernorm_cpu_kernel.h"
#include "engine/ops/norm/rmsnorm_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr float kNormEpsilon = 1e-3f;
constexpr auto kRunNorm = [](const auto& kernel) { return RunAnywhere(kernel, 9); };

struct NormCase {
  int64_t rows, width;
  float p = 0;
  int64_t own_rows = 0;  // of a sample, which has three more; 0: a sample has one row
};
// One for each kernel, with rows and items left over; the largest widths once.
const NormCase kNormCases[] = {{7, 768, 0.2f}, {1, 64},           {3, 1088, 0.1f},
                               {1, 2112},      {2, 4160},         {9, 130, 0.2f},
                               {3, 8, 0.5f},   {6, 768, 0.2f, 3}, {4, 130, 0.2f, 2}};

// What the offset of RMSNorm's gamma is in all these tests.
constexpr float kGammaOffset = 0.5f;

RmsNormShape RmsShape(const NormCase& c) {
  return {.rows = c.rows, .width = c.width, .epsilon = kNormEpsilon, .gamma_offset = kGammaOffset};
}

// The micro-batch's first is sample 5. Where a rank has a part of each, one row is before it.
struct Randomness {
  explicit Randomness(const NormCase& c)
      : position(std::vector<StepPosition>{{6, 5}}),
        args{.p = c.p, .seed = 3, .stream = 4, .position = position.data()} {
    const auto row = static_cast<uint64_t>(c.width), own = row * static_cast<uint64_t>(c.own_rows);
    args.elements_per_sample = own == 0 ? row : own + 3 * row;
    args.own_begin = own == 0 ? 0 : row;
    args.own_elements = own;
    cpu = {.p = c.p,
           .seed = 3,
           .stream = 4,
           .step = 6,
           .first_element = 5 * args.elements_per_sample + args.own_begin,
           .run = own,
           .gap = own == 0 ? 0 : 3 * row};
  }
  DropoutParams cpu;
  HostArray<StepPosition> position;
  DropoutArgs args;
};

template <typename T>
constexpr double kRelative = sizeof(T) == 4 ? 1e-5 : kTolerance<T>;

template <typename T, bool kLayer>
void TestForward(const NormCase& test, bool fused) {
  SCOPED_TRACE(testing::Message() << test.rows << " x " << test.width << " fused " << fused);
  const int64_t n = test.rows * test.width;
  const auto x = RandomVector<T>(n, 1), residual = RandomVector<T>(n, 2);
  const auto gamma = RandomVector<T>(test.width, 3), beta = RandomVector<T>(test.width, 4);
  Randomness random(test);
  if (!kLayer) random.args.p = random.cpu.p = 0;  // the CPU has no dropout there
  std::vector<T> sum(n), y(n);
  std::vector<float> mean(test.rows), rstd(test.rows);
  if constexpr (kLayer) {
    fused ? ResidualLayerNormForward<T>(residual.data(), x.data(), random.cpu, gamma.data(),
                                        beta.data(), test.rows, test.width, kNormEpsilon,
                                        sum.data(), y.data(), mean.data(), rstd.data())
          : LayerNormForward<T>(x.data(), gamma.data(), beta.data(), test.rows, test.width,
                                kNormEpsilon, y.data(), mean.data(), rstd.data());
  } else {
    fused ? ResidualRmsNormForward<T>(RmsShape(test), residual.data(), x.data(), gamma.data(),
                                      sum.data(), y.data(), rstd.data())
          : RmsNormForward<T>(RmsShape(test), x.data(), gamma.data(), y.data(), rstd.data());
  }
  HostArray<T> xs(x), residuals(residual), gammas(gamma), betas(beta), ys(n);
  HostArray<float> means(test.rows), rstds(test.rows);
  const NormForwardArgs<T> args = {.x = xs.data(),
                                   .residual = fused ? residuals.data() : nullptr,
                                   .sum = residuals.data(),  // in place
                                   .gamma = gammas.data(),
                                   .gamma_offset = kLayer ? 0 : kGammaOffset,
                                   .beta = kLayer ? betas.data() : nullptr,
                                   .y = ys.data(),
                                   .mean = means.data(),
                                   .rstd = rstds.data(),
                                   .rows = test.rows,
                                   .width = test.width,
                                   .epsilon = kNormEpsilon,
                                   .dropout = random.args};
  const absl::Status ran = RunNormForward<kLayer>(args, kRunNorm);
  ASSERT_TRUE(ran.ok()) << ran;
  EXPECT_TRUE(!fused || SameBits(residuals.values(), sum)) << "sum";
  ExpectNear(ys.values(), y, kRelative<T>, 1e-5, "y");
  if (kLayer) ExpectNear(means.values(), mean, 1e-5, 1e-6, "mean");
  ExpectNear(rstds.values(), rstd, 1e-5, 0, "rstd");
}

template <typename T, bool kLayer>
void TestBackward(const NormCase& test, bool fused) {
  SCOPED_TRACE(testing::Message() << test.rows << " x " << test.width << " fused " << fused);
  const int64_t n = test.rows * test.width;
  const auto x = RandomVector<T>(n, 1), dy = RandomVector<T>(n, 2), up = RandomVector<T>(n, 3);
  const auto gamma = RandomVector<T>(test.width, 4);
  const auto mean = RandomVector<float>(test.rows, 5, 0.1f);
  std::vector<float> rstd(test.rows, 1.25f);
  Randomness random(test);
  std::vector<T> dx(n), d_delta(n);
  std::vector<float> dgamma(test.width, 2.0f), dbeta(test.width, 3.0f);
  if constexpr (kLayer) {
    LayerNormBackwardArgs<T> cpu = {.dy = dy.data(),
                                    .x = x.data(),
                                    .gamma = gamma.data(),
                                    .mean = mean.data(),
                                    .rstd = rstd.data(),
                                    .dx_upstream = fused ? up.data() : nullptr,
                                    .dx = dx.data(),
                                    .d_delta = fused ? d_delta.data() : nullptr,
                                    .dropout = random.cpu,
                                    .dgamma = dgamma.data(),
                                    .dbeta = dbeta.data(),
                                    .accumulate = fused};
    AlignedBuffer workspace(LayerNormBackwardWorkspaceBytes(test.rows, test.width));
    LayerNormBackward(cpu, test.rows, test.width, workspace.data());
  } else {
    RmsNormBackwardArgs<T> cpu = {.x = x.data(),
                                  .gamma = gamma.data(),
                                  .rstd = rstd.data(),
                                  .dy = dy.data(),
                                  .dx_upstream = fused ? up.data() : nullptr,
                                  .dx = dx.data(),
                                  .dgamma = dgamma.data(),
                                  .accumulate = fused};
    AlignedBuffer workspace(RmsNormBackwardWorkspaceBytes(test.rows, test.width));
    RmsNormBackward(RmsShape(test), cpu, workspace.data());
  }
  HostArray<T> xs(x), dys(dy), ups(up), gammas(gamma), d_deltas(n);
  HostArray<float> means(mean), rstds(rstd), dgammas(std::vector<float>(test.width, 2.0f)),
      dbetas(std::vector<float>(test.width, 3.0f));
  HostArray<float> workspace(2 * test.rows * test.width);
  const NormBackwardArgs<T> args = {.x = xs.data(),
                                    .gamma = gammas.data(),
                                    .gamma_offset = kLayer ? 0 : kGammaOffset,
                                    .mean = means.data(),
                                    .rstd = rstds.data(),
                                    .dy = dys.data(),
                                    .dx_upstream = fused ? ups.data() : nullptr,
                                    .dx = fused ? ups.data() : dys.data(),  // in place
                                    .d_delta = fused && kLayer ? d_deltas.data() : nullptr,
                                    .dgamma = dgammas.data(),
                                    .dbeta = kLayer ? dbetas.data() : nullptr,
                                    .accumulate = fused,
                                    .rows = test.rows,
                                    .width = test.width,
                                    .dropout = random.args};
  const absl::Status ran = RunNormBackward<kLayer>(args, workspace.data(), kRunNorm);
  ASSERT_TRUE(ran.ok()) << ran;
  ExpectNear((fused ? ups : dys).values(), dx, kRelative<T>, 2e-5, "dx");
  // The CPU's sums are as far off as these are: fp64.
  for (int64_t i = 0; i < test.width; ++i) {
    double gamma_sum = fused ? 2 : 0, beta_sum = fused ? 3 : 0;
    for (int64_t r = 0; r < test.rows; ++r) {
      const double gradient = ToFloat(dy[r * test.width + i]);
      const double centred = ToFloat(x[r * test.width + i]) - (kLayer ? double{mean[r]} : 0.0);
      gamma_sum += gradient * centred * rstd[r];
      beta_sum += gradient;
    }
    dgamma[i] = static_cast<float>(gamma_sum);
    dbeta[i] = static_cast<float>(beta_sum);
  }
  ExpectNear(dgammas.values(), dgamma, 1e-5, 2e-5, "dgamma");
  if (kLayer) ExpectNear(dbetas.values(), dbeta, 1e-5, 2e-5, "dbeta");
  if (fused && kLayer) ExpectNear(d_deltas.values(), d_delta, kRelative<T>, 2e-5, "ddelta");
}

template <typename T>
class NormKernels : public testing::Test {};
using Types = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(NormKernels, Types);

TYPED_TEST(NormKernels, ForwardIsTheCpus) {
  for (const NormCase& test : kNormCases) {
    for (const bool fused : {false, true}) {
      TestForward<TypeParam, true>(test, fused);
      TestForward<TypeParam, false>(test, fused);
    }
  }
}
TYPED_TEST(NormKernels, BackwardIsTheCpus) {
  for (const NormCase& test : kNormCases) {
    for (const bool fused : {false, true}) {
      TestBackward<TypeParam, true>(test, fused);
      TestBackward<TypeParam, false>(test, fused);
    }
  }
}
TEST(WideNorms, OfBf16) {
  TestForward<bf16, true>({1, 8256, 0.1f}, true);
  TestBackward<bf16, true>({1, 8256, 0.1f}, true);
  TestForward<bf16, false>({1, 16448}, false);
  TestBackward<bf16, false>({2, 8256}, true);
}

// RMSNorm of columns of wider rows, in place, are the bits of the same rows alone; what lies beside
// them stays. Width 64: by items, where the stride lets packs be aligned.
template <typename T>
void TestColumns(int64_t rows, int64_t width, int64_t beside) {
  SCOPED_TRACE(testing::Message() << rows << " x " << width << " beside " << beside);
  const int64_t stride = width + 2 * beside, n = rows * stride;
  const auto x = RandomVector<T>(n, 1), dy = RandomVector<T>(n, 2);
  const auto gamma = RandomVector<T>(width, 3);
  const auto at = [&](int64_t i) { return i / width * stride + beside + i % width; };
  std::vector<T> x_alone(rows * width), dy_alone(rows * width);
  for (int64_t i = 0; i < rows * width; ++i) x_alone[i] = x[at(i)], dy_alone[i] = dy[at(i)];
  HostArray<T> gammas(gamma), xs(x), dxs(dy), ys(x), alone(x_alone), gradient(dy_alone);
  HostArray<T> y(rows * width), dx(rows * width);
  HostArray<float> rstd(rows), rstds(rows), dgamma(width), dgammas(width);
  HostArray<float> workspace(2 * rows * width);
  NormForwardArgs<T> forward = {.x = alone.data(),
                                .gamma = gammas.data(),
                                .y = y.data(),
                                .rstd = rstd.data(),
                                .rows = rows,
                                .width = width,
                                .epsilon = kNormEpsilon};
  ASSERT_TRUE(RunNormForward<false>(forward, kRunNorm).ok());
  forward.x = forward.y = ys.data() + beside;
  forward.rstd = rstds.data();
  forward.stride = stride;
  ASSERT_TRUE(RunNormForward<false>(forward, kRunNorm).ok());
  NormBackwardArgs<T> backward = {.x = alone.data(),
                                  .gamma = gammas.data(),
                                  .rstd = rstd.data(),
                                  .dy = gradient.data(),
                                  .dx = dx.data(),
                                  .dgamma = dgamma.data(),
                                  .rows = rows,
                                  .width = width};
  ASSERT_TRUE(RunNormBackward<false>(backward, workspace.data(), kRunNorm).ok());
  backward.x = xs.data() + beside;
  backward.dy = backward.dx = dxs.data() + beside;
  backward.dgamma = dgammas.data();
  backward.stride = stride;
  ASSERT_TRUE(RunNormBackward<false>(backward, workspace.data(), kRunNorm).ok());
  std::vector<T> want_y = x, want_dx = dy;
  for (int64_t i = 0; i < rows * width; ++i) {
    want_y[at(i)] = y.data()[i], want_dx[at(i)] = dx.data()[i];
  }
  // Kernels of unlike widths add up in unlike orders.
  const double bar = stride % 8 == 0 || width % 64 != 0 ? 0 : kRelative<T>;
  ExpectNear(ys.values(), want_y, bar, bar, "y");
  ExpectNear(dxs.values(), want_dx, bar, 2 * bar, "dx");
  ExpectNear(rstds.values(), rstd.values(), bar, 0, "rstd");
  ExpectNear(dgammas.values(), dgamma.values(), bar, 2 * bar, "dgamma");
}

TYPED_TEST(NormKernels, OfColumnsOfWiderRows) {
  TestColumns<TypeParam>(5, 64, 8);
  TestColumns<TypeParam>(3, 1088, 64);
  TestColumns<TypeParam>(5, 64, 6);
  TestColumns<TypeParam>(5, 40, 3);
}

// More rows than blocks: each block has several, the last ones fewer.
TEST(ManyRows, OfAWarpAndOfABlock) {
  TestBackward<bf16, true>({kMaxNormBlocks * 4 + 6, 64}, false);
  TestBackward<bf16, true>({kMaxNormBlocks * 2 + 1, 1088}, true);
  TestBackward<bf16, false>({kMaxNormBlocks * 2 + 1, 72}, false);
}

}  // namespace
}  // namespace milepost::kernels::cuda
