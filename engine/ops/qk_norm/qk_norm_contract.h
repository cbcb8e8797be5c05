// What the kernels that norm queries and keys agree on, on both devices: shapes, arguments,
// workspaces.
#ifndef MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CONTRACT_H_

#include <algorithm>
#include <cstdint>

#include "common/round_up.h"
#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

struct QkNormShape {
  int64_t rows = 0;
  int64_t heads = 0;     // of queries
  int64_t kv_heads = 0;  // of keys, and as many of values
  int64_t head_dim = 0;
  float epsilon = 0;
  float gamma_offset = 0;  // added to gammas, in fp32
};

template <typename T>
struct QkNormBackwardArgs {
  const T* qkv = nullptr;  // the forward's input
  const T* gamma_q = nullptr;
  const T* gamma_k = nullptr;
  const T* dout = nullptr;
  T* dqkv = nullptr;  // may be dout
  float* dgamma_q = nullptr;
  float* dgamma_k = nullptr;
  bool accumulate_q = false;  // dgamma_q: += instead of =
  bool accumulate_k = false;
};

// ---- on the CPU, 64-byte aligned: of dgamma_q and dgamma_k ----
inline int64_t QkNormBackwardWorkspaceBytes(int64_t rows, int64_t head_dim) {
  return 2 * BiasGradientWorkspaceBytes(rows, head_dim);
}

// ---- on a GPU ----
namespace cuda {

inline constexpr int64_t kQkNormWarps = 8;        // of a block of the backward; a head each
inline constexpr int64_t kMaxQkNormBlocks = 132;  // a Hopper's multiprocessors
inline int64_t QkNormBackwardBlocks(const QkNormShape& shape) {
  const int64_t heads = shape.rows * (shape.heads + 2 * shape.kv_heads);
  return std::min(CeilDiv(heads, kQkNormWarps), kMaxQkNormBlocks);
}
// Two sums of each warp.
inline int64_t QkNormBackwardWorkspaceBytes(const QkNormShape& shape) {
  return 2 * QkNormBackwardBlocks(shape) * kQkNormWarps * shape.head_dim *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CONTRACT_H_
