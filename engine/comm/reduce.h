// The one reduction that all communicators share, so that they give the same bits.
#ifndef MILEPOST_ENGINE_COMM_REDUCE_H_
#define MILEPOST_ENGINE_COMM_REDUCE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "engine/comm/communicator.h"

namespace milepost::comm {

size_t ElementBytes(ElementType type);

// out[i] = ((sources[0][i] op sources[1][i]) op ...). `out` may be one of the sources; otherwise
// nothing overlaps. At least one source. No alignment beyond the element's is needed.
void ReduceInOrder(absl::Span<const char* const> sources, char* out, size_t count, ElementType type,
                   ReduceOp op);

// Sums of bf16 sources, added in fp32 and in order, into `out`, which overlaps none of them.
void SumBf16InOrder(absl::Span<const char* const> sources, float* out, size_t count);

// The values as bf16 (to nearest, ties to even; a NaN stays one) in the first half of their bytes,
// and back.
void RoundInPlace(absl::Span<float> values);
void WidenInPlace(absl::Span<float> values);

// First element of rank r's shard when `count` elements are split as evenly as possible.
inline size_t ShardBegin(size_t count, int rank, int world) {
  const size_t base = count / world;
  const size_t rest = count % world;
  return base * rank + rest * rank / world;
}

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_REDUCE_H_
