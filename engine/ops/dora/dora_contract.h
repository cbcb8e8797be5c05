// What the kernels of DoRA are given, and the workspaces that they take.
#ifndef MILEPOST_ENGINE_OPS_DORA_DORA_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_DORA_DORA_CONTRACT_H_

#include <algorithm>
#include <cstdint>

#include "engine/ops/contract/alignment.h"
#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

inline constexpr int kMostDoraParts = 3;

// norms[0, o] = |W_o|, norms[1, o] = |W_o + scale B_o A|. The square of the second is
//   |W_o|^2 + B_o . (2 scale W_o A^T + scale^2 B_o A A^T)
// so that W + scale B A is never there. It is below 0 only by rounding, and 0 then.
template <typename T>
struct DoraNormsArgs {
  int64_t out = 0, in = 0, rank = 0;
  bool transposed = false;          // weight is [out, in]; else [in, out]
  const T* weight = nullptr;        // W
  const T* up = nullptr;            // B [out, rank]
  const float* products = nullptr;  // W A^T [out, rank]
  const float* gram = nullptr;      // A A^T [rank, rank]
  float scale = 0;
  float* norms = nullptr;  // [2, out]
};

// Columns from `column` to `end` of a layer's output. `norms`, and with it `change`, may be null:
// these columns are multiplied by 1. `bias` may be null.
template <typename T>
struct DoraColumns {
  int64_t column = 0, end = 0;
  const float* norms = nullptr;  // [2, end - column]
  const T* change = nullptr;
  const T* bias = nullptr;
};

// What the gradients of a part are written to; either may be null.
struct DoraGradients {
  float* change = nullptr;
  float* bias = nullptr;
  bool adds_change = false, adds_bias = false;  // += instead of =
};

template <typename T>
struct DoraArgs {
  int64_t rows = 0, width = 0;
  int parts = 0;
  DoraColumns<T> part[kMostDoraParts];
};

// v times the part's factor, and its bias: see DoraFactor.
template <typename T>
struct DoraForwardArgs : DoraArgs<T> {
  const T* v = nullptr;
  T* y = nullptr;  // may be v
};

// dv = factor dy; d_change = sum over rows of dy v, over the second norm; d_bias = that of dy.
template <typename T>
struct DoraBackwardArgs : DoraArgs<T> {
  const T* dy = nullptr;
  const T* v = nullptr;
  T* dv = nullptr;  // may be dy
  DoraGradients gradients[kMostDoraParts];
};

// (|W| + d) / |W + s B A|; what is all 0 stays that.
inline constexpr float DoraFactor(float before, float change, float norm) {
  return norm > 0 ? (before + change) / norm : 1.0F;
}
inline constexpr float DoraShare(float sum, float norm) { return norm > 0 ? sum / norm : 0.0F; }

// kDoraNorms: the products, on both devices.
struct DoraProductBytes {
  DoraProductBytes(int64_t out, int64_t rank)
      : gram_at(DeviceAligned(out * rank * static_cast<int64_t>(sizeof(float)))),
        all(gram_at + DeviceAligned(rank * rank * static_cast<int64_t>(sizeof(float)))) {}
  int64_t gram_at;
  int64_t all;
};

// kDora: factors and biases by column.
inline int64_t DoraForwardWorkspaceBytes(int64_t width) {
  return 2 * DeviceAligned(width * static_cast<int64_t>(sizeof(float)));
}

// ---- on the CPU, 64-byte aligned ----
// kDoraBackward: factors and both sums by column, and the sums' partials.
inline int64_t DoraBackwardWorkspaceBytes(int64_t rows, int64_t width) {
  return 3 * DeviceAligned(width * static_cast<int64_t>(sizeof(float))) +
         2 * BiasGradientWorkspaceBytes(rows, width);
}

namespace cuda {

// The same on a GPU.
inline int64_t DoraBackwardWorkspaceBytes(int64_t rows, int64_t width) {
  return 3 * DeviceAligned(width * static_cast<int64_t>(sizeof(float))) +
         2 * DeviceAligned(BiasGradientWorkspaceBytes(rows, width));
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_DORA_DORA_CONTRACT_H_
