#include "engine/kernels/cuda/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
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
  HostArray<T> rounded(values);
  RunKernel(AddBiasKernel<T, float>{bias.data(), batch, width, sum.data()});
  RunKernel(AddBiasKernel<T, T>{bias.data(), batch, width, rounded.data()});
  for (int64_t i = 0; i < batch * width; ++i) {
    const int64_t from = (i / width * sequence + row) * width + i % width;
    EXPECT_EQ(ToFloat(out.data()[i]), ToFloat(values[from])) << i;
    EXPECT_EQ(sum.data()[i], addend[i] + ToFloat(values[i % width])) << i;
    const float added = ToFloat(values[i]) + ToFloat(values[i % width]);
    EXPECT_EQ(ToFloat(rounded.data()[i]), ToFloat(FromFloat<T>(added))) << i;
  }
}

TEST(RowsKernels, TakeOneOfEachSequenceAndAddABias) {
  TestRows<float>(3, 5, 130, 4);
  TestRows<bf16>(1, 7, 64, 0);
  TestRows<f16>(2, 3, 301, 1);
}

template <typename T>
void TestCopyColumns(int64_t rows, int64_t width, int64_t stride, int64_t first) {
  const auto values = RandomVector<T>(rows * stride, 3), before = RandomVector<T>(rows * stride, 4);
  HostArray<T> x(values), out(before);
  const absl::Status ran =
      RunCopyColumns(x.data() + first, rows, width, stride, out.data() + first,
                     [](const auto& kernel) { return RunAnywhere(kernel, 7); });
  ASSERT_TRUE(ran.ok()) << ran;
  for (int64_t i = 0; i < rows * stride; ++i) {
    const bool copied = i % stride >= first && i % stride < first + width;
    EXPECT_EQ(ToFloat(out.data()[i]), ToFloat((copied ? values : before)[i])) << i;
  }
}

TEST(RowsKernels, CopySomeColumns) {
  TestCopyColumns<float>(5, 64, 192, 128);
  TestCopyColumns<bf16>(33, 16, 64, 48);
  TestCopyColumns<f16>(3, 16, 64, 5);
  TestCopyColumns<bf16>(1, 7, 21, 14);
}

// Random targets, of which `share` of 10 are there.
std::vector<int32_t> TargetsOf(int64_t rows, int share) {
  const auto draws = RandomVector<float>(rows, 5);
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < rows; ++i) {
    const auto tenth = static_cast<int>(std::abs(draws[i]) * 1e6F) % 10;
    targets.push_back(tenth < share ? static_cast<int32_t>(i % 7) : -1);
  }
  return targets;
}

TEST(RowsKernels, OrderThoseWithATargetFirst) {
  for (const int64_t rows : {1, 31, 32, 1000, 1024, 1025, 5000}) {
    for (const int share : {0, 2, 10}) {
      const std::vector<int32_t> targets = TargetsOf(rows, share);
      HostArray<int32_t> on_device(targets), order(rows);
      RunKernel(OrderByTargetKernel{on_device.data(), rows, order.data()});
      std::vector<int32_t> want(rows);
      std::iota(want.begin(), want.end(), 0);
      std::stable_partition(want.begin(), want.end(), [&](int32_t r) { return targets[r] >= 0; });
      EXPECT_EQ(order.values(), want) << rows << " rows, " << share << " in 10";
    }
  }
}

template <typename T, int kN>
void TestGatherAndScatter(int64_t rows, int64_t width, int64_t count, bool adds) {
  const auto values = RandomVector<T>(rows * width, 3), addends = RandomVector<T>(rows * width, 4);
  std::vector<int32_t> order(rows);
  for (int64_t i = 0; i < rows; ++i) order[i] = static_cast<int32_t>((i * 5 + 2) % rows);
  const std::vector<int32_t> targets = TargetsOf(rows, 5);
  HostArray<T> x(values), gathered(count * width), out(rows * width), addend(addends);
  HostArray<int32_t> device_order(order), device_targets(targets), kept(count);
  RunKernel(GatherRowsKernel<T, kN>{x.data(), device_order.data(), count, width, gathered.data(),
                                    device_targets.data(), kept.data()});
  RunKernel(ScatterRowsKernel<T, kN>{gathered.data(), device_order.data(), count, rows, width,
                                     adds ? addend.data() : nullptr, out.data()});
  for (int64_t i = 0; i < rows; ++i) {
    if (i < count) {
      EXPECT_EQ(kept.data()[i], targets[order[i]]) << i;
    }
    for (int64_t j = 0; j < width; ++j) {
      const int64_t at = order[i] * width + j;
      const float rest = adds ? ToFloat(addends[at]) : 0.0F;
      ASSERT_EQ(ToFloat(out.data()[at]), i < count ? ToFloat(values[at]) : rest) << i << " " << j;
      if (i >= count) continue;
      ASSERT_EQ(ToFloat(gathered.data()[i * width + j]), ToFloat(values[at])) << i << " " << j;
    }
  }
}

TEST(RowsKernels, GatherAndScatter) {
  TestGatherAndScatter<bf16, 8>(13, 264, 5, false);
  TestGatherAndScatter<bf16, 8>(13, 264, 13, true);
  TestGatherAndScatter<float, 4>(7, 12, 3, true);
  TestGatherAndScatter<f16, 1>(11, 33, 4, false);
}

}  // namespace
}  // namespace milepost::kernels::cuda
