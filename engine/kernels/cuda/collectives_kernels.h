// The kernels behind collectives.h.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_COLLECTIVES_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_COLLECTIVES_KERNELS_H_

#include <cstdint>

#include "engine/kernels/cuda/collectives.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

struct ZeroRangesKernel {
  static constexpr int kThreads = 128;
  const FlatChunk* chunks;
  int64_t chunk_count;
  float* flat;

  Grid grid() const { return {.x = chunk_count}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const FlatChunk chunk = c.Load(chunks + c.block());
    for (int i = c.thread(); i < chunk.count; i += kThreads) {
      c.Store(flat + chunk.begin + i, 0.0f);
    }
  }
};

template <typename Out>
struct SumInRankOrderKernel {
  static constexpr int kThreads = 256;
  static constexpr int kEach = 8;  // one access of bf16
  RoundedPieces pieces;
  int64_t n;
  Out* out;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * kEach)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = (c.block() * kThreads + c.thread()) * kEach;
    if (i >= n) return;
    auto sum = ReadUpTo<kEach>(c, Piece(0) + i, n - i);
    for (int rank = 1; rank < pieces.ranks; ++rank) {
      const auto values = ReadUpTo<kEach>(c, Piece(rank) + i, n - i);
      MP_UNROLL
      for (int j = 0; j < kEach; ++j) sum.v[j] += values.v[j];
    }
    WriteUpTo(c, out + i, sum.v, n - i);
  }

 private:
  MP_DEVICE const bf16* Piece(int rank) const {
    return rank == pieces.own ? pieces.mine : pieces.received + rank * pieces.stride;
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_COLLECTIVES_KERNELS_H_
