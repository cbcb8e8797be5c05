// Attention for where cuDNN is missing or refuses: semantics and layouts of the CPU's
// (attention_cpu_kernel.h) for any head_dim that it takes, grouped heads and documents included.
// Never holds a sequence x sequence matrix; fp32 throughout, on the ordinary units: slower than
// cuDNN. The same inputs give the same bits. T in {float, bf16, f16}; device memory, 16-byte
// aligned.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/attention/attention_contract.h"

namespace milepost::kernels::cuda {

// out [batch, sequence, heads * head_dim], lse float [batch, heads, sequence]; documents nullable.
template <typename T>
absl::Status AttentionForward(const AttentionShape& shape, const T* qkv, const int32_t* documents,
                              T* out, float* lse, cudaStream_t stream);

// dqkv is overwritten and may not alias anything read. `workspace`: AttentionWorkspaceBytes.
template <typename T>
absl::Status AttentionBackward(const AttentionShape& shape, const T* qkv, const int32_t* documents,
                               const T* out, const float* lse, const T* d_out, T* dqkv,
                               void* workspace, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_KERNEL_H_
