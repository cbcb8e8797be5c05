// RMSNorm over the last dimension, alone or fused with the residual add before it; T in {float,
// bf16}. x, y, delta and their gradients: [rows, width], all of them columns of wider rows where
// the shape has a stride; gamma: [width] of T; rstd: float[rows], written by the forward and read
// by the backward: 1 / sqrt(mean(x^2) + epsilon), in fp32. Results do not depend on the thread
// count.
//
//   RmsNormForward<bf16>({.rows = 64, .width = 768}, x, gamma, y, rstd);
#ifndef MILEPOST_ENGINE_OPS_NORM_RMSNORM_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_NORM_RMSNORM_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/norm/norm_contract.h"

namespace milepost::kernels {

// y = x * rstd * (gamma_offset + gamma). y may be x.
template <typename T>
void RmsNormForward(const RmsNormShape& shape, const T* x, const T* gamma, T* y, float* rstd);

// sum = residual + delta; y = RmsNorm(sum). The statistics are those of sum as stored (rounded to
// T), so that the backward sees the same numbers. sum may alias residual or delta.
template <typename T>
void ResidualRmsNormForward(const RmsNormShape& shape, const T* residual, const T* delta,
                            const T* gamma, T* sum, T* y, float* rstd);

template <typename T>
struct RmsNormBackwardArgs {
  const T* x = nullptr;            // [rows, width]: the forward's input (sum of the fused forward)
  const T* gamma = nullptr;        // [width]
  const float* rstd = nullptr;     // [rows]
  const T* dy = nullptr;           // [rows, width]
  const T* dx_upstream = nullptr;  // [rows, width], nullable: added to dx (the residual path)
  T* dx = nullptr;                 // [rows, width]; may alias dy or dx_upstream
  float* dgamma = nullptr;         // [width]
  bool accumulate = false;         // dgamma: += instead of =
};

// dx = dx_upstream + RmsNorm'(dy). `workspace` is 64-byte aligned.
template <typename T>
void RmsNormBackward(const RmsNormShape& shape, const RmsNormBackwardArgs<T>& args,
                     void* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_NORM_RMSNORM_CPU_KERNEL_H_
