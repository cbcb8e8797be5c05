// What batch normalisation's kernels agree on, on both devices: arguments and workspaces. `rows`
// are pixels of all images.
#ifndef MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CONTRACT_H_

#include <algorithm>
#include <cstdint>

#include "common/round_up.h"
#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

template <typename T>
struct BatchNormForwardArgs {
  const T* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const T* gamma = nullptr;
  const T* beta = nullptr;
  const T* residual = nullptr;  // null: none
  bool relu = false;
  T* y = nullptr;  // may be x or residual
};

template <typename T>
struct BatchNormBackwardArgs {
  const T* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const T* gamma = nullptr;
  const T* beta = nullptr;
  // The gradient of y and, where y has two consumers, what the second adds to it (null: nothing).
  const T* dy = nullptr;
  const T* dy2 = nullptr;
  // What tells where the ReLU let through: y itself, or (null) what x gives once more, which there
  // is without a residual only.
  bool relu = false;
  const T* y = nullptr;
};

// ---- on the CPU, 64-byte aligned, whichever the call ----
inline constexpr int kBatchNormCoefficients = 5;  // floats of each channel
inline int64_t BatchNormWorkspaceBytes(int64_t rows, int64_t channels) {
  const int64_t sums = RowBlocks(rows).count * 2 * static_cast<int64_t>(sizeof(double));
  return PartialStride(channels) *
         (kBatchNormCoefficients * static_cast<int64_t>(sizeof(float)) + sums);
}

// ---- on a GPU ----
namespace cuda {

// Channels of a block of threads: 8 threads of 8 side by side; 32 of one where the number of
// channels is no multiple of 8.
constexpr int64_t BatchNormTileWidth(int64_t at_once) { return at_once == 1 ? 32 : 8 * at_once; }
// Rows of a block that sums: about a thousand blocks, each of many rows.
inline int64_t BatchNormBlockRows(int64_t rows, int64_t channels) {
  constexpr int64_t kBlocks = 1024, kLeastRows = 256, kMultiple = 32;
  const int64_t tiles = CeilDiv(channels, BatchNormTileWidth(channels % 8 == 0 ? 8 : 1));
  const int64_t most = std::max<int64_t>(1, kBlocks / tiles);
  const int64_t blocks = std::clamp<int64_t>(CeilDiv(rows, kLeastRows), 1, most);
  return std::max(RoundUp(CeilDiv(rows, blocks), kMultiple), kMultiple);
}
// Of both kinds of sums; 8-byte aligned.
inline int64_t BatchNormWorkspaceBytes(int64_t rows, int64_t channels) {
  return CeilDiv(rows, BatchNormBlockRows(rows, channels)) * 2 * channels *
         static_cast<int64_t>(sizeof(double));
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CONTRACT_H_
