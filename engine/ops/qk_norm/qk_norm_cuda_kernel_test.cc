#include "engine/ops/qk_norm/qk_norm_cuda_kernel-inl.h"

#include "engine/ops/qk_norm/qk_norm_cpu_kernel.h"

#include <gtest/gtest.h>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr auto kRunQkNorm = [](const auto& kernel) { return RunAnywhere(kernel, 31); };

template <typename T>
constexpr double kQkNormBar = sizeof(T) == 4 ? 1e-5 : kTolerance<T>;

template <typename T, int N>
void TestQkNorm(const QkNormShape& s) {
  SCOPED_TRACE(testing::Message() << s.rows << " rows of heads of " << s.head_dim);
  const int64_t n = AllHeads(s) * s.head_dim;
  const auto packed = RandomVector<T>(n, 1), gradient = RandomVector<T>(n, 2);
  const auto for_q = RandomVector<T>(s.head_dim, 3), for_k = RandomVector<T>(s.head_dim, 4);
  std::vector<T> want(n), want_dqkv(n);
  std::vector<float> want_q(s.head_dim, 1.0f), want_k(s.head_dim, 2.0f);
  kernels::QkNormForward(s, packed.data(), for_q.data(), for_k.data(), want.data());
  AlignedBuffer cpu_workspace(kernels::QkNormBackwardWorkspaceBytes(s.rows, s.head_dim));
  QkNormBackwardArgs<T> cpu = {
      packed.data(), for_q.data(), for_k.data(), gradient.data(), want_dqkv.data(), want_q.data(),
      want_k.data(), true,         false};
  kernels::QkNormBackward(s, cpu, cpu_workspace.data());

  HostArray<T> qkv(packed), dout(gradient), gamma_q(for_q), gamma_k(for_k), out(n);
  HostArray<float> dq(std::vector<float>(s.head_dim, 1.0f)), dk(s.head_dim);
  const Grid grid = QkNormBackwardKernel<T, N>{.s = s}.grid();
  HostArray<float> workspace(2 * grid.x * QkNormBackwardKernel<T, N>::kWarps * s.head_dim);
  RunKernel(QkNormForwardKernel<T, N>{s, qkv.data(), gamma_q.data(), gamma_k.data(), out.data()});
  ExpectNear(out.values(), want, kQkNormBar<T>, 1e-6, "out");
  const QkNormBackwardArgs<T> args = {qkv.data(),  gamma_q.data(), gamma_k.data(),
                                      dout.data(), dout.data(),    dq.data(),
                                      dk.data(),   true,           false};
  const absl::Status ran = RunQkNormBackward<N>(s, args, workspace.data(), kRunQkNorm);
  ASSERT_TRUE(ran.ok()) << ran;
  ExpectNear(dout.values(), want_dqkv, kQkNormBar<T>, 2e-5, "dqkv");
  ExpectNear(dq.values(), want_q, 1e-5, 2e-5, "dgamma_q");
  ExpectNear(dk.values(), want_k, 1e-5, 2e-5, "dgamma_k");
  RunKernel(QkNormForwardKernel<T, N>{s, qkv.data(), gamma_q.data(), gamma_k.data(), qkv.data()});
  EXPECT_TRUE(SameBits(qkv.values(), out.values())) << "in place";
}

TEST(QkNormKernels, AreTheCpus) {
  TestQkNorm<float, 4>({13, 4, 2, 64, 1e-3f});
  TestQkNorm<bf16, 4>({3, 2, 2, 128, 1e-3f, 1});
  TestQkNorm<f16, 4>({1, 3, 1, 256, 1e-3f});
  TestQkNorm<float, 1>({2, 2, 1, 18, 1e-3f, 0.5f});
  TestQkNorm<bf16, 4>({190, 5, 1, 8, 1e-3f});  // more heads than warps
}

template <typename T>
void TestBias(int64_t rows, int64_t width, bool accumulate) {
  const auto gradient = RandomVector<T>(rows * width, 5);
  std::vector<float> want(width, 3.0f);
  AlignedBuffer cpu_workspace(kernels::BiasGradientWorkspaceBytes(rows, width));
  kernels::BiasGradient(gradient.data(), rows, width, accumulate, want.data(),
                        cpu_workspace.data());
  HostArray<T> dy(gradient);
  HostArray<float> db(std::vector<float>(width, 3.0f));
  HostArray<float> partials(CeilDiv(rows, BiasRowsPerBlock(rows)) * width);
  const absl::Status ran = RunBiasGradient(dy.data(), rows, width, width, accumulate, db.data(),
                                           partials.data(), kRunQkNorm);
  ASSERT_TRUE(ran.ok()) << ran;
  ExpectNear(db.values(), want, 1e-5, 2e-5, "db");
  // Some of the columns.
  const int64_t first = width / 3, count = width / 2;
  HostArray<float> some(count);
  const absl::Status again = RunBiasGradient(dy.data() + first, rows, count, width, false,
                                             some.data(), partials.data(), kRunQkNorm);
  ASSERT_TRUE(again.ok()) << again;
  for (int64_t j = 0; j < count; ++j) {
    const float before = accumulate ? 3.0f : 0.0f;
    EXPECT_NEAR(some.data()[j], want[first + j] - before, 2e-4f) << j;
  }
}

TEST(BiasGradientKernels, AreTheCpus) {
  TestBias<float>(100, 1032, true);
  TestBias<bf16>(33, 8, false);
  TestBias<f16>(1, 133, false);
  TestBias<bf16>(8200, 8, true);
}

}  // namespace
}  // namespace milepost::kernels::cuda
