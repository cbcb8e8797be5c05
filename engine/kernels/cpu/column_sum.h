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

namespace milepost::kernels {

// At least 16 rows a block, at most 64 blocks.
struct RowBlocks {
  explicit RowBlocks(int64_t row_count)
      : rows(row_count),
        size(std::max<int64_t>(16, (row_count + 63) / 64)),
        count((row_count + size - 1) / size) {}
  int64_t First(int64_t block) const { return block * size; }
  int64_t Last(int64_t block) const { return std::min(rows, (block + 1) * size); }

  int64_t rows;
  int64_t size;
  int64_t count;
};

// Floats from one partial to the next: whole cache lines, so that threads share none.
inline int64_t PartialStride(int64_t width) { return (width + 15) / 16 * 16; }

// out[i] (+)= sum over blocks, in order, of partials[block * stride + i]. Parallel over columns.
void AddPartials(const float* partials, int64_t blocks, int64_t stride, int64_t width,
                 bool accumulate, float* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_COLUMN_SUM_H_
