// The shape of an RMSNorm, and the workspaces of the norms' backward: sums over rows of dgamma and
// dbeta.
#ifndef MILEPOST_ENGINE_OPS_NORM_NORM_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_NORM_NORM_CONTRACT_H_

#include <algorithm>
#include <cstdint>

#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

struct RmsNormShape {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-5f;
  float gamma_offset = 0;  // added to gamma, in fp32: Gemma's weights are what is beside 1
  int64_t stride = 0;      // elements from a row to the next, where rows are columns of wider ones

  int64_t RowStride() const { return stride == 0 ? width : stride; }
};

// ---- on the CPU, 64-byte aligned ----
inline int64_t LayerNormBackwardWorkspaceBytes(int64_t rows, int64_t width) {
  return 2 * BiasGradientWorkspaceBytes(rows, width);
}
inline int64_t RmsNormBackwardWorkspaceBytes(int64_t rows, int64_t width) {
  return BiasGradientWorkspaceBytes(rows, width);
}

// ---- on a GPU ----
namespace cuda {

// Blocks take every so many-th row, so that how rows are added up depends on sizes alone.
// Four to each multiprocessor of a Hopper, which have the shared memory of six.
inline constexpr int64_t kMaxNormBlocks = 528;
inline int64_t NormBackwardWorkspaceBytes(int64_t rows, int64_t width) {
  return 2 * std::min(rows, kMaxNormBlocks) * width * static_cast<int64_t>(sizeof(float));
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_NORM_NORM_CONTRACT_H_
