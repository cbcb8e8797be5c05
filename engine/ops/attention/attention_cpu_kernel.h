// Multi-head attention, causal or not, grouped or not, within documents or not, that never holds a
// sequence x sequence matrix (flash attention): fp32 online softmax over key tiles, log-sum-exp
// saved, probabilities recomputed in the backward.
//
//   AttentionShape shape{.batch = 2, .sequence = 512, .heads = 12, .head_dim = 64};
//   AttentionForward<bf16>(shape, qkv, nullptr, out, lse, workspace);
//
// Shapes and workspaces: attention_contract.h.
//
// qkv: [batch, sequence, (heads + 2 * kv_heads) * head_dim] as Hugging Face's GPT-2 c_attn packs it
// (all of q, then all of k, then all of v; heads inside each). Query head h reads the keys and
// values of head h / (heads / kv_heads). out: [batch, sequence, heads * head_dim]. lse:
// float [batch, heads, sequence]. Scores are scaled by 1 / sqrt(head_dim). In bf16 the
// probabilities and the score gradients are rounded to bf16 before their products; sums are fp32.
// Results do not depend on the thread count.
//
// documents: int32 [batch, sequence], ids that never fall along a sequence, or null. A query sees
// the keys of its own id only (all of the sequence's where it is null; causal: those not after it,
// and of these no more than shape.window). Padding is a document of its own. Blocks of keys that a
// block of queries does not see cost nothing.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/dtype/half.h"
#include "engine/ops/attention/attention_contract.h"

namespace milepost::kernels {

// T in {float, bf16}. Parallel over (batch, head, group of queries).
template <typename T>
void AttentionForward(const AttentionShape& shape, const T* qkv, const int32_t* documents, T* out,
                      float* lse, void* workspace);

// dqkv (laid out as qkv) is overwritten; it may not alias anything read. Parallel over (batch, head
// of keys).
template <typename T>
void AttentionBackward(const AttentionShape& shape, const T* qkv, const int32_t* documents,
                       const T* out, const float* lse, const T* d_out, T* dqkv, void* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CPU_KERNEL_H_
