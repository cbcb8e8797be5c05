#include "engine/ops/rope/rope_cuda_kernel-inl.h"

#include "engine/ops/rope/rope_cpu_kernel.h"

#include <gtest/gtest.h>

#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

TEST(RopeTables, AreTheCpus) {
  for (const RopeParams& params :
       {RopeParams{}, RopeParams{.theta = 500000, .factor = 8, .original_context = 64}}) {
    constexpr int64_t kRows = 70, kHeadDim = 32;
    std::vector<int32_t> positions(kRows);
    for (int64_t i = 0; i < kRows; ++i) positions[i] = static_cast<int32_t>(i * i);
    HostArray<int32_t> places(positions);
    for (const bool given : {false, true}) {
      std::vector<float> want(kRows * kHeadDim);
      kernels::RopeTable(params, given ? positions.data() : nullptr, kRows, kHeadDim, want.data());
      HostArray<float> table(kRows * kHeadDim);
      RunKernel(
          RopeTableKernel{params, given ? places.data() : nullptr, kRows, kHeadDim, table.data()});
      ExpectNear(table.values(), want, 0, 1e-7, "table");
    }
  }
}

template <typename T, int N>
void TestRope(int64_t head_dim, int64_t heads, int64_t extra, bool explicit_positions) {
  const int64_t width = (heads + 1) * head_dim + extra;
  RopeShape shape = {
      .batch = 2, .sequence = 5, .width = width, .heads = heads, .head_dim = head_dim};
  const std::vector<int32_t> positions = {4, 0, 1, 2, 3, 3, 3, 0, 1, 0};
  const int64_t n = 10 * width;
  const auto values = RandomVector<T>(n, 1);
  const auto angles = RandomVector<float>(shape.sequence * head_dim, 2);
  HostArray<float> table(angles);
  HostArray<int32_t> places(positions);
  for (const bool forward : {true, false}) {
    shape.positions = explicit_positions ? positions.data() : nullptr;
    std::vector<T> want(n);
    kernels::Rope(shape, values.data(), angles.data(), forward, want.data());
    if (explicit_positions) shape.positions = places.data();
    HostArray<T> x(values), out(n);
    const float direction = forward ? 1.0f : -1.0f;
    RunKernel(RopeKernel<T, N>{shape, x.data(), table.data(), direction, out.data()});
    ExpectNear(out.values(), want, sizeof(T) == 4 ? 1e-6 : kTolerance<T> / 2, 1e-6, "rope");
    RunKernel(RopeKernel<T, N>{shape, x.data(), table.data(), direction, x.data()});
    EXPECT_TRUE(SameBits(x.values(), out.values())) << "in place";
  }
}

TEST(RopeKernels, AreTheCpus) {
  TestRope<float, 8>(64, 3, 0, true);
  TestRope<bf16, 8>(16, 5, 8, false);
  TestRope<f16, 8>(128, 2, 0, true);
  TestRope<float, 1>(6, 3, 1, false);
  TestRope<bf16, 1>(20, 2, 3, true);
}

}  // namespace
}  // namespace milepost::kernels::cuda
