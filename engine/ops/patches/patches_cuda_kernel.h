// Patches of images as rows, and rows with a class in front; bit for bit what the CPU's
// (patches_cpu_kernel.h) make. T in {float, bf16, f16}; device memory, 16-byte aligned.
// Asynchronous on `stream`.
#ifndef MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/patches/patches_contract.h"

namespace milepost::kernels::cuda {

// `table`: device memory too.
template <typename T>
absl::Status ImagePatches(const PatchGrid& grid, const uint8_t* images, const T* table, T* rows,
                          cudaStream_t stream);

template <typename T>
absl::Status PatchTokens(const TokenRows& tokens, const T* rows, const T* cls, const T* positions,
                         T* x, cudaStream_t stream);
template <typename T>
absl::Status PatchTokensBackward(const TokenRows& tokens, const T* dx, T* drows,
                                 const TokenSum& dcls, const TokenSum& dpositions,
                                 cudaStream_t stream);

template <typename T>
absl::Status FirstRows(const TokenRows& tokens, const T* x, T* y, cudaStream_t stream);
template <typename T>
absl::Status FirstRowsBackward(const TokenRows& tokens, const T* dy, T* dx, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CUDA_KERNEL_H_
