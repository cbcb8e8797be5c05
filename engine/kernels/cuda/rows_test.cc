#include "engine/kernels/cuda/rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/kernels/cuda/rows_kernels.h"
#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
void TestRows(int64_t batch, int64_t sequence, int64_t width, int64_t row) {
  const auto values = RandomVector<T>(batch * sequence * width, 3);
  HostArray<T> x(values), out(batch * width);
  HostArray<int64_t> which(std::vector<int64_t>(1, row));
  RunKernel(TakeRowKernel<T>{x.data(), batch, sequence, width, which.data(), out.data()});
  const auto addend = RandomVector<float>(batch * width, 4);
  HostArray<float> sum(addend);
  HostArray<T> bias(std::vector<T>(values.begin(), values.begin() + width));
  RunKernel(AddBiasKernel<T>{bias.data(), batch, width, sum.data()});
  for (int64_t i = 0; i < batch * width; ++i) {
    const int64_t from = (i / width * sequence + row) * width + i % width;
    EXPECT_EQ(ToFloat(out.data()[i]), ToFloat(values[from])) << i;
    EXPECT_EQ(sum.data()[i], addend[i] + ToFloat(values[i % width])) << i;
  }
}

TEST(RowsKernels, TakeOneOfEachSequenceAndAddABias) {
  TestRows<float>(3, 5, 130, 4);
  TestRows<bf16>(1, 7, 64, 0);
  TestRows<f16>(2, 3, 301, 1);
}

}  // namespace
}  // namespace milepost::kernels::cuda
