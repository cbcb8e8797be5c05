// Rotary positions, as Hugging Face's Llama lays them out: element i of the first half of a head
// turns with element i of its second half, by angle position * f(i).
//
//   RopeTable(params, nullptr, sequence, head_dim, table);    // once for all layers
//   Rope<bf16>(shape, qkv, table, /*forward=*/true, qkv);     // in place
#ifndef MILEPOST_ENGINE_KERNELS_CPU_ROPE_H_
#define MILEPOST_ENGINE_KERNELS_CPU_ROPE_H_

#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::kernels {

// f(i) = theta^(-2i / head_dim), stretched as in Llama 3 where factor > 1: f / factor where the
// wavelength 2 pi / f is above original_context / low_frequency, f where it is below
// original_context / high_frequency, between the two a mix linear in original_context / wavelength.
struct RopeParams {
  double theta = 10000;
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  double original_context = 8192;
};

// table [rows, head_dim]: the head_dim / 2 cosines of a position, then their sines; row t is of
// positions[t], or of t where they are null. Angles are fp64. head_dim is even. Parallel over rows.
void RopeTable(const RopeParams& params, const int32_t* positions, int64_t rows, int64_t head_dim,
               float* table);

struct RopeShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t width = 0;     // of a row of x
  int64_t heads = 0;     // that turn, at the row's front; the rest is passed on as it is
  int64_t head_dim = 0;  // even
  // [batch, sequence]: the table's row of each row of x. Null: its place in the sequence.
  const int32_t* positions = nullptr;
};

// out = x [batch, sequence, width] turned, T in {float, bf16}; backwards (the gradient's way) if
// not `forward`. out may be x. Parallel over rows.
template <typename T>
void Rope(const RopeShape& shape, const T* x, const float* table, bool forward, T* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_ROPE_H_
