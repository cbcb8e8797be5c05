#include "engine/ops/embedding/embedding_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/embedding/embedding_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status EmbeddingForward(const EmbeddingRows& rows, const EmbeddingTables<T>& tables,
                              int64_t width, const DropoutArgs& dropout, T* out,
                              cudaStream_t stream) {
  const DropoutMask mask = MaskOf(dropout);
  if (EmbedsItems(width, mask)) {
    const EmbeddingForwardKernel<T, ItemShare> kernel = {rows, tables, width, mask, out};
    return Launch(kernel, kernel.grid(), stream, "EmbeddingForward");
  }
  const EmbeddingForwardKernel<T, SingleShare> kernel = {rows, tables, width, mask, out};
  return Launch(kernel, kernel.grid(), stream, "EmbeddingForward");
}

template <typename T>
absl::Status TokenRows(const int32_t* tokens, int64_t rows, const T* table, int64_t first,
                       int64_t count, int64_t width, T* out, cudaStream_t stream) {
  if (width % 64 == 0) {
    const TokenRowsKernel<T, ItemShare> kernel = {tokens, rows, table, first, count, width, out};
    return Launch(kernel, kernel.grid(), stream, "TokenRows");
  }
  const TokenRowsKernel<T, SingleShare> kernel = {tokens, rows, table, first, count, width, out};
  return Launch(kernel, kernel.grid(), stream, "TokenRows");
}

template <typename T>
absl::Status EmbeddingBackward(const EmbeddingRows& rows, const T* dy, int64_t width,
                               const DropoutArgs& dropout, const TableGradient& dwte,
                               const TableGradient& dwpe, const TableGradient& dwse,
                               void* workspace, cudaStream_t stream) {
  const EmbeddingWorkspace layout(rows.batch * rows.sequence, width);
  char* bytes = static_cast<char*>(workspace);
  auto* heads = reinterpret_cast<float*>(bytes + layout.OrderBytes());
  const EmbeddingScratch scratch = {.order = reinterpret_cast<int32_t*>(bytes),
                                    .keys = reinterpret_cast<RowKey*>(heads),
                                    .heads = heads,
                                    .tails = heads + layout.elements};
  return RunEmbeddingBackward<T>(
      rows, dy, width, MaskOf(dropout), {dwte, dwpe, dwse}, scratch, [&](const auto& kernel) {
        return Launch(kernel, kernel.grid(), stream, "EmbeddingBackward");
      });
}

#define MP_INSTANTIATE(T)                                                                          \
  template absl::Status EmbeddingForward(const EmbeddingRows&, const EmbeddingTables<T>&, int64_t, \
                                         const DropoutArgs&, T*, cudaStream_t);                    \
  template absl::Status TokenRows(const int32_t*, int64_t, const T*, int64_t, int64_t, int64_t,    \
                                  T*, cudaStream_t);                                               \
  template absl::Status EmbeddingBackward(                                                         \
      const EmbeddingRows&, const T*, int64_t, const DropoutArgs&, const TableGradient&,           \
      const TableGradient&, const TableGradient&, void*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
