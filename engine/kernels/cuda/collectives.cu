#include "engine/kernels/cuda/collectives.h"

#include "engine/kernels/cuda/collectives_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"

namespace milepost::kernels::cuda {

absl::Status ZeroRanges(const FlatChunk* chunks, int64_t chunk_count, float* flat,
                        cudaStream_t stream) {
  const ZeroRangesKernel kernel = {chunks, chunk_count, flat};
  return Launch(kernel, kernel.grid(), stream, "ZeroRanges");
}

template <typename Out>
absl::Status SumInRankOrder(const RoundedPieces& pieces, int64_t n, Out* out, cudaStream_t stream) {
  const SumInRankOrderKernel<Out> kernel = {pieces, n, out};
  return Launch(kernel, kernel.grid(), stream, "SumInRankOrder");
}
template absl::Status SumInRankOrder(const RoundedPieces&, int64_t, float*, cudaStream_t);
template absl::Status SumInRankOrder(const RoundedPieces&, int64_t, bf16*, cudaStream_t);

}  // namespace milepost::kernels::cuda
