#include "engine/ops/pooling/pooling_cuda_kernel-inl.h"

#include "engine/ops/pooling/pooling_cpu_kernel.h"

#include <gtest/gtest.h>

#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T, int N>
void TestMaxPool(const PoolSpec& s) {
  const int64_t rows = s.OutHeight(), columns = s.OutWidth();
  const int64_t n = s.batch * s.height * s.width * s.channels;
  const int64_t outputs = s.batch * rows * columns * s.channels;
  auto values = RandomVector<T>(n, 1);
  for (int64_t i = 0; i < n; i += 3) values[i] = FromFloat<T>(1);  // equal ones
  values[n / 2] = FromFloat<T>(NAN);
  const auto first = RandomVector<T>(outputs, 2), second = RandomVector<T>(outputs, 3);
  std::vector<T> want_y(outputs), want_dx(n);
  std::vector<uint8_t> want_winners(outputs);
  kernels::MaxPoolForward(s, values.data(), want_y.data(), want_winners.data());
  kernels::MaxPoolBackward(s, want_winners.data(), first.data(), second.data(), want_dx.data());
  HostArray<T> x(values), y(outputs), dy(first), dy2(second), dx(n);
  HostArray<uint8_t> winners(outputs);
  RunKernel(MaxPoolForwardKernel<T, N>{s, rows, columns, x.data(), y.data(), winners.data()});
  EXPECT_TRUE(SameBits(winners.values(), want_winners));
  for (int64_t i = 0; i < outputs; ++i) {  // a NaN's bits may differ on a device
    const float got = ToFloat(y.values()[i]), want = ToFloat(want_y[i]);
    ASSERT_TRUE(got == want || (got != got && want != want)) << i;
  }
  RunKernel(MaxPoolBackwardKernel<T, N>{s, rows, columns, winners.data(), dy.data(), dy2.data(),
                                        dx.data()});
  EXPECT_TRUE(SameBits(dx.values(), want_dx));
}

TEST(PoolingKernels, MaxPoolIsTheCpus) {
  TestMaxPool<float, 8>({2, 7, 6, 8});
  TestMaxPool<bf16, 8>({1, 5, 9, 16, 2, 2, 0});
  TestMaxPool<bf16, 1>({1, 6, 5, 3});
}

template <typename T>
void TestAverage() {
  constexpr int64_t kBatch = 3, kPixels = 49, kChannels = 37;
  const auto values = RandomVector<T>(kBatch * kPixels * kChannels, 4);
  const auto gradient = RandomVector<T>(kBatch * kChannels, 5);
  std::vector<T> want(kBatch * kChannels), want_dx(values.size());
  kernels::AveragePoolForward(values.data(), kBatch, kPixels, kChannels, want.data());
  kernels::AveragePoolBackward(gradient.data(), kBatch, kPixels, kChannels, want_dx.data());
  HostArray<T> x(values), y(kBatch * kChannels), dy(gradient), dx(x.size());
  RunKernel(AveragePoolForwardKernel<T>{x.data(), kBatch, kPixels, kChannels, y.data()});
  RunKernel(AveragePoolBackwardKernel<T>{dy.data(), kBatch, kPixels, kChannels, dx.data()});
  const double relative = sizeof(T) == 4 ? 1e-5 : kTolerance<T>;
  ExpectNear(y.values(), want, relative, 1e-6, "y");
  ExpectNear(dx.values(), want_dx, relative, 1e-6, "dx");
}

TEST(PoolingKernels, AverageAndLookUpAreTheCpus) {
  TestAverage<float>();
  TestAverage<bf16>();
  const auto table = RandomVector<bf16>(3 * 256, 6);
  std::vector<uint8_t> bytes(100 * 3);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37);
  std::vector<bf16> want(bytes.size());
  kernels::LookUpChannels(bytes.data(), 100, 3, table.data(), want.data());
  HostArray<uint8_t> x(bytes);
  HostArray<bf16> tables(table), y(300);
  RunKernel(LookUpKernel<bf16>{x.data(), 300, 3, tables.data(), y.data()});
  EXPECT_TRUE(SameBits(y.values(), want));
}

}  // namespace
}  // namespace milepost::kernels::cuda
