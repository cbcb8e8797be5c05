// Sums over rows with one fixed order, whatever the thread count: the rows are cut into blocks that
// depend on their number only, each block is summed into its own partial, and the partials are
// added in block order. Internal to the kernels.
//
//   const RowBlocks blocks(rows);
//   ParallelTasks(blocks.count, [&](int64_t b, int) { /* sum blocks.First(b)..Last(b) */ });
//   AddPartials(partials, blocks.count, PartialStride(width), width, accumulate, out);
#ifndef MILEPOST_ENGINE_KERNELS_CPU_COLUMN_SUM_H_
#define MILEPOST_ENGINE_KERNELS_CPU_COLUMN_SUM_H_

#include <algorithm>
#include <cstdint>

#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

// out[i] (+)= sum over blocks, in order, of partials[block * stride + i]. Parallel over columns.
void AddPartials(const float* partials, int64_t blocks, int64_t stride, int64_t width,
                 bool accumulate, float* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_COLUMN_SUM_H_
