// Causal attention of the newest rows of one text over the keys and values of all its rows, which
// are kept in a cache; semantics and layouts of the CPU's (cached_attention_cpu_kernel.h), but that
// probabilities are never rounded. fp32 throughout, on the ordinary units; a block has one row and
// one head. T in {float, bf16, f16}; device memory, 16-byte aligned.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/attention/attention_contract.h"

namespace milepost::kernels::cuda {

template <typename T>
struct CachedAttentionArgs {
  CachedAttentionShape shape;
  int64_t rows = 0;                    // of qkv and out
  const int32_t* positions = nullptr;  // device: positions[0] is that of row 0
  const int64_t* last = nullptr;       // device: the last row that counts
  // Device: whose of the caches, which lie one behind the other, the rows' keys and values are in:
  // texts[0]. Null: the first.
  const int32_t* texts = nullptr;
  // All rows count, each of a text of its own: row r of texts[r], at positions[r]. Below 0: of
  // none; then nothing is kept, and out is zeros.
  bool apart = false;
  const T* qkv = nullptr;  // [rows, (heads + 2 kv_heads) head_dim]
  T* cache = nullptr;      // [texts, 2, kv_heads, positions, head_dim]
  T* out = nullptr;        // [rows, heads head_dim]; zeros behind the last row
};

// Rows that would lie outside the cache are not kept in it.
template <typename T>
absl::Status CachedAttention(const CachedAttentionArgs<T>& args, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CUDA_KERNEL_H_
