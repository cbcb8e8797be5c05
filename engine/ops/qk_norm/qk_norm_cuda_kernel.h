// RMSNorm of every head of the queries and the keys; semantics of the CPU's (qk_norm_cpu_kernel.h),
// and the gradient of a bias. T in {float, bf16, f16}; device memory, 16-byte aligned; head_dim at
// most 256. The same inputs give the same bits.
#ifndef MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/contract/sums.h"
#include "engine/ops/qk_norm/qk_norm_contract.h"

namespace milepost::kernels::cuda {

// out may be qkv.
template <typename T>
absl::Status QkNormForward(const QkNormShape& shape, const T* qkv, const T* gamma_q,
                           const T* gamma_k, T* out, cudaStream_t stream);

// dqkv may be dout. `workspace`: QkNormBackwardWorkspaceBytes.
template <typename T>
absl::Status QkNormBackward(const QkNormShape& shape, const QkNormBackwardArgs<T>& args,
                            void* workspace, cudaStream_t stream);

// db[j] (+)= sum over rows of dy[row, j], j < width. dy may be columns of a wider matrix, from one
// row of which to the next there are `row_stride` elements; it then need not be aligned.
// `workspace`: BiasGradientWorkspaceBytes.
template <typename T>
absl::Status BiasGradient(const T* dy, int64_t rows, int64_t width, int64_t row_stride,
                          bool accumulate, float* db, void* workspace, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CUDA_KERNEL_H_
