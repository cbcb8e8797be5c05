// Causal attention of the newest rows of one text over the keys and values of all its rows, which
// are kept in a cache.
//
//   CachedAttentionShape shape{.positions = 1024, .heads = 12, .head_dim = 64, .kv_heads = 12};
//   CachedAttention<bf16>(shape, /*first=*/0, prompt_rows, qkv, cache, out, workspace);
//   CachedAttention<bf16>(shape, /*first=*/prompt_rows, 1, qkv, cache, out, nullptr);
//
// Or of the newest row of each of several texts, whose caches lie one behind the other:
//
//   CachedRowsAttention<bf16>(shape, {positions, texts, /*count=*/4}, qkv, caches, out);
//
// qkv: [rows, (heads + 2 * kv_heads) * head_dim], packed as attention_cpu_kernel.h has it. cache:
// [2, kv_heads, positions, head_dim], keys, then values, so that one head's lie end to end. out:
// [rows, heads * head_dim].
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/attention/attention_contract.h"

namespace milepost::kernels {

// Copies the keys and values of `rows` rows to the cache's positions [first, first + rows), which
// it has, then attends: row r sees the positions up to first + r, all of which must have been
// written, the last shape.window of them where it has one. Results do not depend on the thread
// count. Of several rows, probabilities are rounded to bf16 before their product where T is; of a
// single one they are not. Parallel over heads and blocks of rows; one row: over heads.
template <typename T>
void CachedAttention(const CachedAttentionShape& shape, int64_t first, int64_t rows, const T* qkv,
                     T* cache, T* out, void* workspace);

struct CachedRows {
  const int32_t* positions = nullptr;  // of the rows; those of no text do not count
  const int32_t* texts = nullptr;      // the cache of each row, no two the same; below 0: none
  int64_t count = 0;
};

// The same for rows that are of a text each. What a row gets are the bits of CachedAttention of it
// alone. Of no text: zeros, and nothing is kept. Parallel over rows and heads.
template <typename T>
void CachedRowsAttention(const CachedAttentionShape& shape, const CachedRows& rows, const T* qkv,
                         T* caches, T* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CPU_KERNEL_H_
