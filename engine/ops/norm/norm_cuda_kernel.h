// LayerNorm and RMSNorm over the last dimension, alone or fused with the residual add and the
// dropout before it; semantics of the CPU's (layernorm_cpu_kernel.h, rmsnorm_cpu_kernel.h). T in
// {float, bf16, f16}; all device memory, 16-byte aligned. One pass over the row where width is a
// multiple of 64, at most 16384 (LayerNorm's backward: 8192), and the stride one of 8; others take
// slower kernels, and need no alignment. The same inputs give the same bits.
//
//   NormForwardArgs<bf16> forward{.x = delta, .residual = residual, .gamma = gamma, ...};
//   MP_RETURN_IF_ERROR(NormForward(forward, stream));
#ifndef MILEPOST_ENGINE_OPS_NORM_NORM_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_NORM_NORM_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/norm/norm_contract.h"

namespace milepost::kernels::cuda {

// LayerNorm where there is beta, else RMSNorm.
template <typename T>
struct NormForwardArgs {
  const T* x = nullptr;         // [rows, width]
  const T* residual = nullptr;  // [rows, width], nullable: the input is residual + dropout(x),
  T* sum = nullptr;             //   written here as well; may be residual or x
  const T* gamma = nullptr;     // [width]
  float gamma_offset = 0;       // RMSNorm: added to gamma, as on the CPU
  const T* beta = nullptr;      // [width], nullable
  T* y = nullptr;               // [rows, width]
  float* mean = nullptr;        // [rows]; LayerNorm
  float* rstd = nullptr;        // [rows]
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;  // RMSNorm: as RmsNormShape's, of all that have [rows, width]
  float epsilon = 1e-5f;
  // Not of RMSNorm. elements_per_sample and own_elements are multiples of width.
  DropoutArgs dropout;
};

template <typename T>
absl::Status NormForward(const NormForwardArgs<T>& args, cudaStream_t stream);

// LayerNorm where there is dbeta, else RMSNorm.
template <typename T>
struct NormBackwardArgs {
  const T* x = nullptr;            // [rows, width]: what was normalised (sum, where fused)
  const T* gamma = nullptr;        // [width]
  float gamma_offset = 0;          // RMSNorm: added to gamma
  const float* mean = nullptr;     // [rows]; LayerNorm
  const float* rstd = nullptr;     // [rows]
  const T* dy = nullptr;           // [rows, width]
  const T* dx_upstream = nullptr;  // [rows, width], nullable: added to dx
  T* dx = nullptr;                 // [rows, width]; may be dy or dx_upstream
  T* d_delta = nullptr;            // [rows, width], nullable: dropout mask * dx
  float* dgamma = nullptr;         // [width]
  float* dbeta = nullptr;          // [width], nullable
  bool accumulate = false;         // dgamma, dbeta: += instead of =
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;   // as the forward's
  DropoutArgs dropout;  // the forward's; read only for d_delta
};

template <typename T>
absl::Status NormBackward(const NormBackwardArgs<T>& args, void* workspace, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_NORM_NORM_CUDA_KERNEL_H_
