// The reduction that all communicators share, so that they give the same bits. Pure and
// thread-safe.
#ifndef MILEPOST_ENGINE_COMM_REDUCE_H_
#define MILEPOST_ENGINE_COMM_REDUCE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "engine/comm/communicator.h"

namespace milepost::comm {

size_t ElementBytes(ElementType type);

// out[i] = ((sources[0][i] op sources[1][i]) op ...). There is at least one source. `out` may be
// one of the sources; otherwise nothing overlaps. Elements need only their own alignment.
void ReduceInOrder(absl::Span<const char* const> sources, char* out, size_t count, ElementType type,
                   ReduceOp op);

// Sums bf16 sources in fp32, in order, into `out`, which must not overlap any of them.
void SumBf16InOrder(absl::Span<const char* const> sources, float* out, size_t count);

// RoundInPlace rounds values to bf16 (to nearest, ties to even; a NaN stays a NaN) and puts them in
// the first half of their bytes. WidenInPlace converts them back.
void RoundInPlace(absl::Span<float> values);
void WidenInPlace(absl::Span<float> values);

// The first element of rank r's shard when `count` elements are split as evenly as possible.
inline size_t ShardBegin(size_t count, int rank, int world) {
  const size_t base = count / world;
  const size_t rest = count % world;
  return base * rank + rest * rank / world;
}

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_REDUCE_H_
