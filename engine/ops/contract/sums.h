// How kernels cut sums into blocks, and the workspace that this takes: sums over rows, of each
// column, and sums over a flat buffer. The cut depends on sizes only, so that sums have the same
// bits on any number of threads.
//
//   const int64_t bytes = BiasGradientWorkspaceBytes(rows, width);         // on the CPU
//   const int64_t on_gpu = cuda::BiasGradientWorkspaceBytes(rows, width);
#ifndef MILEPOST_ENGINE_OPS_CONTRACT_SUMS_H_
#define MILEPOST_ENGINE_OPS_CONTRACT_SUMS_H_

#include <algorithm>
#include <cstdint>

#include "common/round_up.h"

namespace milepost::kernels {

// ---- on the CPU ----
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

// Of one gradient of a bias [width], from rows of it.
inline int64_t BiasGradientWorkspaceBytes(int64_t rows, int64_t width) {
  return RowBlocks(rows).count * PartialStride(width) * static_cast<int64_t>(sizeof(float));
}

// Elements of a flat buffer that are one f64 sum; on both devices.
inline constexpr int64_t kSquaresBlock = 4096;
inline int64_t SumSquaresWorkspaceBytes(int64_t n) {
  return CeilDiv(n, kSquaresBlock) * static_cast<int64_t>(sizeof(double));
}

// ---- on a GPU ----
namespace cuda {

// Elements of a chunk of a flat buffer, which lies within one tensor: a block of threads takes it.
inline constexpr int64_t kChunkElements = 4096;

// At most 256 blocks of at least 32 rows.
inline int64_t BiasRowsPerBlock(int64_t rows) { return std::max<int64_t>(32, CeilDiv(rows, 256)); }
inline int64_t BiasGradientWorkspaceBytes(int64_t rows, int64_t width) {
  return CeilDiv(rows, BiasRowsPerBlock(rows)) * width * static_cast<int64_t>(sizeof(float));
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CONTRACT_SUMS_H_
