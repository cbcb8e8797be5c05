// What attention's kernels on both devices agree on with the plan: sizes and workspaces.
//
//   const int64_t bytes = AttentionBackwardWorkspaceBytes(shape, DType::kBf16, threads);
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CONTRACT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/dtype/dtype.h"

namespace milepost::kernels {

// Of ranks with the same heads each computes a part of the queries, over all keys. Queries come in
// blocks. In each round every part gets one, back and forth: later queries see more keys.
struct QueryPart {
  static constexpr int64_t kBlock = 64;
  int64_t parts = 1;
  int64_t part = 0;

  constexpr int64_t RoundOf(int64_t query) const { return query / kBlock / parts; }
  constexpr bool Owns(int64_t query) const {
    const int64_t place = query / kBlock % parts;
    return (RoundOf(query) % 2 == 0 ? place : parts - 1 - place) == part;
  }
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;  // a multiple of 8, at most 256
  int64_t kv_heads = 0;  // divides heads; 0: as many
  bool causal = true;    // a query sees no key after it
  int64_t window = 0;    // causal: keys that a query sees, its own among them; 0: all up to it
  QueryPart queries;     // that are computed; what the kernels make of the others is 0
};

struct CachedAttentionShape {
  int64_t positions = 0;  // that the cache holds
  int64_t heads = 0;
  int64_t head_dim = 0;  // as CheckAttentionShape wants it
  int64_t kv_heads = 0;  // divides heads
  int64_t window = 0;    // as AttentionShape's

  // Elements of the cache of one text.
  int64_t TextElements() const { return 2 * kv_heads * positions * head_dim; }
};

// InvalidArgument where head_dim is not supported, a size is not positive, kv_heads does not divide
// heads, or there is a window without the causal mask. Check once, when planning.
absl::Status CheckAttentionShape(const AttentionShape& shape);

// ---- on the CPU, 64-byte aligned ----
// Per thread that has something to do: `threads` is MaxThreads() of the thread that will call.
int64_t AttentionForwardWorkspaceBytes(const AttentionShape& shape, DType type, int threads);
int64_t AttentionBackwardWorkspaceBytes(const AttentionShape& shape, DType type, int threads);
// For calls of up to `rows` rows; it does not grow with the positions. 0 for one row.
int64_t CachedAttentionWorkspaceBytes(const CachedAttentionShape& shape, int64_t rows, DType type,
                                      int threads);

// ---- on a GPU ----
namespace cuda {
int64_t AttentionWorkspaceBytes(const AttentionShape& shape);  // of the backward: sums of rows
}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CONTRACT_H_
