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

template <typename T>
struct BackwardInputs {
  explicit BackwardInputs(const NormCase& test)
      : x(RandomVector<T>(test.rows * test.width, 1)),
        dy(RandomVector<T>(test.rows * test.width, 2)),
        up(RandomVector<T>(test.rows * test.width, 3)),
        gamma(RandomVector<T>(test.width, 4)),
        mean(RandomVector<float>(test.rows, 5, 0.1f)),
        rstd(test.rows, 1.25f) {}
  std::vector<T> x, dy, up, gamma;
  std::vector<float> mean, rstd;
};

template <typename T>
struct BackwardOutputs {
  std::vector<T> dx, d_delta;
  std::vector<float> dgamma, dbeta;
};

// What gradients of gamma and beta are added to.
constexpr float kGammaBefore = 2, kBetaBefore = 3;

// In fp64: the CPU's sums over rows are as far off as the GPU's.
template <typename T, bool kLayer>
void SumOverRows(const NormCase& test, bool fused, const BackwardInputs<T>& in,
                 BackwardOutputs<T>* out) {
  for (int64_t i = 0; i < test.width; ++i) {
    double gamma_sum = fused ? kGammaBefore : 0, beta_sum = fused ? kBetaBefore : 0;
    for (int64_t r = 0; r < test.rows; ++r) {
      const double gradient = ToFloat(in.dy[r * test.width + i]);
      const double x = ToFloat(in.x[r * test.width + i]);
      gamma_sum += gradient * (x - (kLayer ? double{in.mean[r]} : 0.0)) * in.rstd[r];
      beta_sum += gradient;
    }
    out->dgamma[i] = static_cast<float>(gamma_sum);
    out->dbeta[i] = static_cast<float>(beta_sum);
  }
}

template <typename T, bool kLayer>
BackwardOutputs<T> BackwardOnCpu(const NormCase& test, bool fused, const BackwardInputs<T>& in,
                                 const DropoutParams& dropout) {
  const int64_t n = test.rows * test.width;
  BackwardOutputs<T> out = {std::vector<T>(n), std::vector<T>(n), std::vector<float>(test.width),
                            std::vector<float>(test.width)};
  AlignedBuffer workspace(kLayer ? LayerNormBackwardWorkspaceBytes(test.rows, test.width)
                                 : RmsNormBackwardWorkspaceBytes(test.rows, test.width));
  if constexpr (kLayer) {
    LayerNormBackwardArgs<T> args = {.dy = in.dy.data(),
                                     .x = in.x.data(),
                                     .gamma = in.gamma.data(),
                                     .mean = in.mean.data(),
                                     .rstd = in.rstd.data(),
                                     .dx_upstream = fused ? in.up.data() : nullptr,
                                     .dx = out.dx.data(),
                                     .d_delta = fused ? out.d_delta.data() : nullptr,
                                     .dropout = dropout,
                                     .dgamma = out.dgamma.data(),
                                     .dbeta = out.dbeta.data()};
    LayerNormBackward(args, test.rows, test.width, workspace.data());
  } else {
    RmsNormBackwardArgs<T> args = {.x = in.x.data(),
                                   .gamma = in.gamma.data(),
                                   .rstd = in.rstd.data(),
                                   .dy = in.dy.data(),
                                   .dx_upstream = fused ? in.up.data() : nullptr,
                                   .dx = out.dx.data(),
                                   .dgamma = out.dgamma.data()};
    RmsNormBackward(RmsShape(test), args, workspace.data());
  }
  SumOverRows<T, kLayer>(test, fused, in, &out);
  return out;
}

template <typename T, bool kLayer>
void TestBackward(const NormCase& test, bool fused) {
  SCOPED_TRACE(testing::Message() << test.rows << " x " << test.width << " fused " << fused);
  const BackwardInputs<T> in(test);
  Randomness random(test);
  const BackwardOutputs<T> want = BackwardOnCpu<T, kLayer>(test, fused, in, random.cpu);
  HostArray<T> x(in.x), dy(in.dy), up(in.up), gamma(in.gamma), d_delta(in.x.size());
  HostArray<float> mean(in.mean), rstd(in.rstd);
  HostArray<float> dgamma(std::vector<float>(test.width, kGammaBefore)),
      dbeta(std::vector<float>(test.width, kBetaBefore));
  HostArray<float> workspace(2 * test.rows * test.width);
  const NormBackwardArgs<T> args = {.x = x.data(),
                                    .gamma = gamma.data(),
                                    .gamma_offset = kLayer ? 0 : kGammaOffset,
                                    .mean = mean.data(),
                                    .rstd = rstd.data(),
                                    .dy = dy.data(),
                                    .dx_upstream = fused ? up.data() : nullptr,
                                    .dx = fused ? up.data() : dy.data(),  // in place
                                    .d_delta = fused && kLayer ? d_delta.data() : nullptr,
                                    .dgamma = dgamma.data(),
                                    .dbeta = kLayer ? dbeta.data() : nullptr,
                                    .accumulate = fused,
                                    .rows = test.rows,
                                    .width = test.width,
                                    .dropout = random.args};
  const absl::Status ran = RunNormBackward<kLayer>(args, workspace.data(), kRunNorm);
  ASSERT_TRUE(ran.ok()) << ran;
  ExpectNear((fused ? up : dy).values(), want.dx, kRelative<T>, 2e-5, "dx");
  ExpectNear(dgamma.values(), want.dgamma, 1e-5, 2e-5, "dgamma");
  if (kLayer) ExpectNear(dbeta.values(), want.dbeta, 1e-5, 2e-5, "dbeta");
  if (fused && kLayer) ExpectNear(d_delta.values(), want.d_delta, kRelative<T>, 2e-5, "ddelta");
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
