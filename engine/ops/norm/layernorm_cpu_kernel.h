// LayerNorm over the last dimension, alone or fused with the residual add before it; T in {float,
// bf16}. x, y, delta: [rows, width]; gamma, beta: [width] of T; mean, rstd: float[rows], written
// by the forward and read by the backward. Statistics are two-pass fp32. Results do not depend on
// the thread count.
#ifndef MILEPOST_ENGINE_OPS_NORM_LAYERNORM_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_NORM_LAYERNORM_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "engine/ops/norm/norm_contract.h"

namespace milepost::kernels {

template <typename T>
void LayerNormForward(const T* x, const T* gamma, const T* beta, int64_t rows, int64_t width,
                      float epsilon, T* y, float* mean, float* rstd);

// x_out = residual + dropout(delta); y = LayerNorm(x_out) * gamma + beta. The statistics are those
// of x_out as stored (rounded to T), so that the backward sees the same numbers. x_out may alias
// residual or delta.
template <typename T>
void ResidualLayerNormForward(const T* residual, const T* delta, const DropoutParams& dropout,
                              const T* gamma, const T* beta, int64_t rows, int64_t width,
                              float epsilon, T* x_out, T* y, float* mean, float* rstd);

// Everything the backward reads and writes. Nullable members say so.
template <typename T>
struct LayerNormBackwardArgs {
  const T* dy = nullptr;           // [rows, width]
  const T* x = nullptr;            // the forward's input (x_out of the fused forward)
  const T* gamma = nullptr;        // [width]
  const float* mean = nullptr;     // [rows]
  const float* rstd = nullptr;     // [rows]
  const T* dx_upstream = nullptr;  // [rows, width], nullable: added to dx (the residual path)
  T* dx = nullptr;                 // [rows, width]; may alias dy or dx_upstream
  T* d_delta = nullptr;     // [rows, width], nullable: dropout mask * dx, for the fused forward
  DropoutParams dropout;    // the forward's; only read if d_delta
  float* dgamma = nullptr;  // [width]
  float* dbeta = nullptr;   // [width]
  bool accumulate = false;  // dgamma, dbeta: += instead of =
};

// dx = dx_upstream + LayerNorm'(dy). `workspace` is 64-byte aligned.
template <typename T>
void LayerNormBackward(const LayerNormBackwardArgs<T>& args, int64_t rows, int64_t width,
                       void* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_NORM_LAYERNORM_CPU_KERNEL_H_
