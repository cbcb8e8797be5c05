// A matrix product, as both devices' libraries get it: C[m,n] (+)= op(A)[m,k] * op(B)[k,n] (+
// bias[n]), row-major.
//
//   MatmulSpec forward{.m = tokens, .n = out, .k = in, .a = DType::kBf16, .b = DType::kBf16,
//                      .c = DType::kBf16, .bias = true};
//
// The three products of a linear layer y[N,M] = x[N,K] W[K,M]:
//   forward          {m=N, n=M, k=K}                                 Execute(x, W, bias, y)
//   input gradient   {m=N, n=K, k=M, transpose_b}                    Execute(dy, W, null, dx)
//   weight gradient  {m=K, n=M, k=N, transpose_a, c=kF32, accumulate} Execute(x, dy, null, dW)
// With W stored [M,K] (torch's nn.Linear): forward {m=N, n=M, k=K, transpose_b} (x, W); input
// gradient {m=N, n=K, k=M} (dy, W); weight gradient {m=M, n=K, k=N, transpose_a} of (dy, x). Where
// y is some columns of a wider matrix, c_row (forward) and a_row (gradients) are that matrix's
// width. For the tied head logits = x wte^T, wte[V,C]: forward {m=N, n=V, k=C, transpose_b}, input
// gradient {m=N, n=C, k=V}, weight gradient dwte {m=V, n=C, k=N, transpose_a} of (dlogits, x).
#ifndef MILEPOST_ENGINE_OPS_LINEAR_LINEAR_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_LINEAR_LINEAR_CONTRACT_H_

#include <cstdint>

#include "engine/dtype/dtype.h"

namespace milepost::kernels {

struct MatmulSpec {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;  // A is stored [k,m]
  bool transpose_b = false;  // B is stored [n,k]
  DType a = DType::kF32;     // A and B have the same type
  DType b = DType::kF32;
  // 16 bits only where A and B are of that type; accumulation is fp32 either way.
  DType c = DType::kF32;
  bool accumulate = false;  // C += instead of C =
  bool bias = false;        // bias[n] of type `bias_type`
  DType bias_type = DType::kF32;
  bool packed_b = false;  // B is what PackWeight wrote
  int64_t a_row = 0;      // elements from one stored row of A to the next; 0: rows are adjacent
  int64_t b_row = 0;      // the same for B
  int64_t c_row = 0;      // the same for C
  // Each row of C has the bits that it has where m is 1. The CPU's alone: libraries of GPUs are not
  // asked for it.
  bool rows_alone = false;

  bool operator==(const MatmulSpec&) const = default;
};

namespace cuda {

// Scratch of a product on a GPU: what cuBLASLt may choose its algorithms for.
inline constexpr int64_t kProductScratchBytes = int64_t{32} << 20;

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_LINEAR_LINEAR_CONTRACT_H_
