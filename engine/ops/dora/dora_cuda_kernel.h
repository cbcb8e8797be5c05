// Magnitudes over low-rank adapters on a GPU (dora.h has the formula): what the CPU's kernels do.
// All pointers are device memory; T in {float, bf16, f16}. v, y, dy and dv are 16-byte aligned.
// Workspaces are as dora_contract.h says. Asynchronous on `stream`.
#ifndef MILEPOST_ENGINE_OPS_DORA_DORA_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_DORA_DORA_CUDA_KERNEL_H_

#include "absl/status/status.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/dora/dora_contract.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status DoraNorms(const DoraNormsArgs<T>& args, cudaStream_t stream);

template <typename T>
absl::Status DoraForward(const DoraForwardArgs<T>& args, void* workspace, cudaStream_t stream);

template <typename T>
absl::Status DoraBackward(const DoraBackwardArgs<T>& args, void* workspace, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_DORA_DORA_CUDA_KERNEL_H_
