#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kernels/cuda/row_order_kernels.h"
#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

struct ListedIds {
  const int32_t* ids;
  template <typename Context>
  MP_DEVICE int Of(Context& c, int64_t row) const {
    return c.Load(ids + row);
  }
};

constexpr auto kRunOrder = [](const auto& kernel) { return RunAnywhere(kernel, 5); };

// Ids below `below`; the sort of the standard library that keeps equal ones in order is the judge.
void ExpectOrder(int64_t rows, int32_t below) {
  SCOPED_TRACE(testing::Message() << rows << " rows, ids below " << below);
  std::mt19937 generator(static_cast<uint32_t>(rows));
  std::vector<int32_t> ids(rows), want(rows);
  for (int32_t& id : ids) id = static_cast<int32_t>(generator() % static_cast<uint32_t>(below));
  std::iota(want.begin(), want.end(), 0);
  std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return ids[a] < ids[b]; });
  HostArray<int32_t> listed(ids), order(rows);
  HostArray<RowKey> scratch(RowOrderScratchBytes(rows) / static_cast<int64_t>(sizeof(RowKey)));
  const absl::Status ran =
      RunRowOrder(ListedIds{listed.data()}, rows, scratch.data(), order.data(), kRunOrder);
  ASSERT_TRUE(ran.ok()) << ran;
  EXPECT_EQ(order.values(), want);
}

TEST(RowOrder, IsByIdAndThenByRow) {
  for (const int64_t rows : {1, 2, 31, 1000, 1023, 1024}) ExpectOrder(rows, 50);
  // Several tiles: whole ones, a last run that is short, that is alone, and of one row.
  for (const int64_t rows : {1025, 2048, 2049, 3000, 4097, 5120, 9001}) ExpectOrder(rows, 700);
}

TEST(RowOrder, HoldsForAnyIds) {
  ExpectOrder(5000, 1);  // all the same
  ExpectOrder(5000, 2);
  ExpectOrder(5000, 2147483647);
}

}  // namespace
}  // namespace milepost::kernels::cuda
