// RMSNorm of every head of the queries and the keys, as Qwen3 has it, before the rotary positions;
// T in {float, bf16, f16}. A row of qkv is [heads of queries, of keys, of values] x head_dim; the
// values are passed on. Statistics are fp32. Results do not depend on the thread count.
//
//   QkNormForward<bf16>(shape, qkv, gamma_q, gamma_k, out);
//
// Source: Dehghani et al. 2023 (arXiv:2302.05442) 2.1, with RMSNorm; Hugging Face's Qwen3Attention.
#ifndef MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/qk_norm/qk_norm_contract.h"

namespace milepost::kernels {

// out = qkv [rows, (heads + 2 kv_heads) head_dim] with each head h of q and k replaced by
// h / sqrt(mean(h^2) + epsilon) * (gamma_offset + gamma [head_dim]). out may be qkv.
template <typename T>
void QkNormForward(const QkNormShape& shape, const T* qkv, const T* gamma_q, const T* gamma_k,
                   T* out);

// `workspace` is 64-byte aligned.
template <typename T>
void QkNormBackward(const QkNormShape& shape, const QkNormBackwardArgs<T>& args, void* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CPU_KERNEL_H_
