#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/expert_parallel/expert_parallel_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

constexpr int64_t kExpertCounts[] = {1, 2, 8, 31, 32, 33, 64, 300, 1024};

// Also of experts without a row.
int32_t RowsOfExpert(int64_t e) { return static_cast<int32_t>(e * 37 % 11 * (e % 3)); }

TEST(ExpertParallelCudaKernel, CountsRowsAndKeepsItsOwn) {
  for (const int64_t experts : kExpertCounts) {
    std::vector<int32_t> rows(experts), offsets(experts + 1), none(experts, -1);
    for (int64_t e = 0; e < experts; ++e) rows[e] = RowsOfExpert(e);
    std::partial_sum(rows.begin(), rows.end(), offsets.begin() + 1);
    HostArray<int32_t> from(offsets), sent(none), received(none);
    const int64_t first = experts / 2, end = experts;
    ASSERT_TRUE(RunAnywhere(CountRowsForExpertsKernel{{.experts = experts,
                                                       .first = first,
                                                       .end = end,
                                                       .sent = sent.data(),
                                                       .received = received.data()},
                                                      from.data()},
                            5)
                    .ok());
    EXPECT_EQ(sent.values(), rows);
    for (int64_t e = 0; e < experts; ++e) {
      EXPECT_EQ(received.values()[e], e < first ? -1 : rows[e]) << e << " of " << experts;
    }
  }
}

TEST(ExpertParallelCudaKernel, SegmentsAreSumsSoFar) {
  for (const int64_t experts : kExpertCounts) {
    std::vector<int32_t> rows(experts), wanted(experts + 1);
    for (int64_t e = 0; e < experts; ++e) rows[e] = RowsOfExpert(e + 5);
    std::partial_sum(rows.begin(), rows.end(), wanted.begin() + 1);
    HostArray<int32_t> received(rows), segments(std::vector<int32_t>(experts + 1, -1));
    ASSERT_TRUE(
        RunAnywhere(
            SegmentsKernel{{.experts = experts, .received = received.data()}, segments.data()}, 5)
            .ok());
    EXPECT_EQ(segments.values(), wanted) << experts;
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
