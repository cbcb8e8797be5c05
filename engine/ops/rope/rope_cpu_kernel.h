// Rotary positions, as Hugging Face's Llama lays them out: element i of the first half of a head
// turns with element i of its second half, by angle position * f(i).
//
//   RopeTable(params, nullptr, sequence, head_dim, table);    // once for all layers
//   Rope<bf16>(shape, qkv, table, /*forward=*/true, qkv);     // in place
#ifndef MILEPOST_ENGINE_OPS_ROPE_ROPE_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_ROPE_ROPE_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/rope/rope_contract.h"

namespace milepost::kernels {

// table [rows, head_dim]: the head_dim / 2 cosines of a position, then their sines; row t is of
// positions[t], or of t where they are null. Angles are fp64. head_dim is even. Parallel over rows.
void RopeTable(const RopeParams& params, const int32_t* positions, int64_t rows, int64_t head_dim,
               float* table);

// out = x [batch, sequence, width] turned, T in {float, bf16}; backwards (the gradient's way) if
// not `forward`. out may be x. Parallel over rows.
template <typename T>
void Rope(const RopeShape& shape, const T* x, const float* table, bool forward, T* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_ROPE_ROPE_CPU_KERNEL_H_
