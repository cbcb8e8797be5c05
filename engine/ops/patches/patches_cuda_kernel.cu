#include "engine/ops/patches/patches_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/patches/patches_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

auto PatchLaunch(cudaStream_t stream, const char* name) {
  return [stream, name](const auto& kernel) { return Launch(kernel, kernel.grid(), stream, name); };
}

}  // namespace

template <typename T>
absl::Status ImagePatches(const PatchGrid& grid, const uint8_t* images, const T* table, T* rows,
                          cudaStream_t stream) {
  return RunImagePatches(grid, images, table, rows, PatchLaunch(stream, "ImagePatches"));
}

template <typename T>
absl::Status PatchTokens(const TokenRows& tokens, const T* rows, const T* cls, const T* positions,
                         T* x, cudaStream_t stream) {
  return RunOnTokens<T, PatchTokensKernel>(PatchLaunch(stream, "PatchTokens"), tokens, rows, cls,
                                           positions, x);
}

template <typename T>
absl::Status PatchTokensBackward(const TokenRows& tokens, const T* dx, T* drows,
                                 const TokenSum& dcls, const TokenSum& dpositions,
                                 cudaStream_t stream) {
  return RunOnTokens<T, PatchTokensBackwardKernel>(PatchLaunch(stream, "PatchTokensBackward"),
                                                   tokens, dx, drows, dcls, dpositions);
}

template <typename T>
absl::Status FirstRows(const TokenRows& tokens, const T* x, T* y, cudaStream_t stream) {
  return RunOnTokens<T, FirstRowsKernel>(PatchLaunch(stream, "FirstRows"), tokens, x, y);
}

template <typename T>
absl::Status FirstRowsBackward(const TokenRows& tokens, const T* dy, T* dx, cudaStream_t stream) {
  return RunOnTokens<T, FirstRowsBackwardKernel>(PatchLaunch(stream, "FirstRowsBackward"), tokens,
                                                 dy, dx);
}

#define MP_INSTANTIATE(T)                                                                    \
  template absl::Status ImagePatches(const PatchGrid&, const uint8_t*, const T*, T*,         \
                                     cudaStream_t);                                          \
  template absl::Status PatchTokens(const TokenRows&, const T*, const T*, const T*, T*,      \
                                    cudaStream_t);                                           \
  template absl::Status PatchTokensBackward(const TokenRows&, const T*, T*, const TokenSum&, \
                                            const TokenSum&, cudaStream_t);                  \
  template absl::Status FirstRows(const TokenRows&, const T*, T*, cudaStream_t);             \
  template absl::Status FirstRowsBackward(const TokenRows&, const T*, T*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
