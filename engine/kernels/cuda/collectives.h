// What collectives need besides their library: padding that must not travel, and sums of values
// that travelled in bf16. Pointers are device memory; asynchronous on `stream`; errors are those of
// the launch.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_COLLECTIVES_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_COLLECTIVES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// flat[i] = 0 in every chunk (MakeChunks), which may begin anywhere. Made for short ranges.
absl::Status ZeroRanges(const FlatChunk* chunks, int64_t chunk_count, float* flat,
                        cudaStream_t stream);

// The same n elements of every rank: rank r's are received[r * stride ...], this rank's own are
// `mine`. All 16-byte aligned; `stride` in elements.
struct RoundedPieces {
  const bf16* received = nullptr;
  int64_t stride = 0;
  const bf16* mine = nullptr;
  int own = 0;
  int ranks = 1;
};
// out[i] = ((x0 + x1) + x2) + ... over the ranks, added in fp32 and, where Out is bf16, rounded
// once: bit for bit comm::SumBf16InOrder. `out` may be `mine` where the types are one, and overlaps
// nothing else that is read. Out in {float, bf16}.
template <typename Out>
absl::Status SumInRankOrder(const RoundedPieces& pieces, int64_t n, Out* out, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_COLLECTIVES_H_
