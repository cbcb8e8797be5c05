// Small dense products on packed tiles, for attention: C[m,n] (+)= A[m,k] B[k,n] with C in fp32.
// Internal to the kernels; serial; no allocation.
//
// Both types are addressed in 4-byte words: one float, or two bf16 that are neighbours along k.
//   A's word (row i, step s)      a[i * a_row + s * a_step]   (rows or columns may be contiguous)
//   B's word (step s, column j)   b[s * b_step + j]
//   C's element (i, j)            c[i * c_row + j]
// steps = k for float, k / 2 for bf16. m is a multiple of 4, n of 16.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_TILE_PRODUCT_H_
#define MILEPOST_ENGINE_KERNELS_CPU_TILE_PRODUCT_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/kernels/cpu/cpu_features.h"

namespace milepost::kernels {

struct TileOperands {
  const void* a;
  int64_t a_row;
  int64_t a_step;
  const void* b;
  int64_t b_step;
  float* c;
  int64_t c_row;
};

using TileProduct = void (*)(const TileOperands& operands, int64_t m, int64_t n, int64_t steps,
                             bool accumulate);

// The fastest implementation for this CPU: for bf16 its dot-product instructions where it has them
// and `bf16_dot` is true, else widening to fp32. Ask once per kernel call, not per tile.
TileProduct ChooseTileProduct(DType type, bool bf16_dot = HasFastBf16Dot());

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_TILE_PRODUCT_H_
