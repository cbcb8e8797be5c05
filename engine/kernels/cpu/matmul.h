// Matrix products through oneDNN: C[m,n] (+)= op(A)[m,k] * op(B)[k,n] (+ bias[n]), row-major. Those
// of a single row are our own (vector_product.h).
//
//   MatmulCache cache;
//   MatmulSpec forward{.m = tokens, .n = out, .k = in, .a = kBf16, .b = kBf16, .c = kBf16,
//                      .bias = true};
//   MP_ASSIGN_OR_RETURN(size_t bytes, cache.WorkspaceBytes(forward));   // while planning
//   MP_RETURN_IF_ERROR(cache.Execute(forward, x, w, bias, y, workspace));
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
#ifndef MILEPOST_ENGINE_KERNELS_CPU_MATMUL_H_
#define MILEPOST_ENGINE_KERNELS_CPU_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/cpu_features.h"

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
  int64_t c_row = 0;      // the same for C

  bool operator==(const MatmulSpec&) const = default;
};

// Primitives, created on first use of a spec and kept. Creating one takes about a millisecond; do
// it before the first step by asking for WorkspaceBytes. Not thread-safe: one per executor. The
// products themselves use the OpenMP threads of the caller; workspace sizes hold for the thread
// count in force when they were asked for, so set it once, first. Errors: InvalidArgument for a bad
// spec, Unimplemented where this CPU or oneDNN cannot do it (packed 16-bit weights).
class MatmulCache {
 public:
  // `bf16_products`: bf16 goes to oneDNN; false: by way of fp32 (matmul_widened.h), like f16.
  explicit MatmulCache(bool bf16_products = HasBf16Products());
  ~MatmulCache();
  MatmulCache(const MatmulCache&) = delete;
  MatmulCache& operator=(const MatmulCache&) = delete;

  // Scratch bytes that Execute (and PackWeight) needs for this spec; 64-byte aligned memory.
  absl::StatusOr<size_t> WorkspaceBytes(const MatmulSpec& spec);

  // A weight laid out for the product, worth it where one weight serves several products: `spec`
  // is the product's, with packed_b set; `b` is as transpose_b says. Packed bytes are valid for
  // that spec only, in this process only.
  absl::StatusOr<size_t> PackedWeightBytes(const MatmulSpec& spec);
  absl::Status PackWeight(const MatmulSpec& spec, const void* b, void* packed, void* workspace);

  // Blocks until C is written. No allocation after the first call for a spec. `bias` is read only
  // if spec.bias. No pointer may alias C.
  absl::Status Execute(const MatmulSpec& spec, const void* a, const void* b, const void* bias,
                       void* c, void* workspace);

 private:
  struct Entry;
  struct Impl;
  absl::StatusOr<Entry*> Find(const MatmulSpec& spec);
  bool Widens(DType type) const {
    return type == DType::kF16 || (type == DType::kBf16 && !bf16_products_);
  }
  absl::Status CheckSpec(const MatmulSpec& spec) const;
  const bool bf16_products_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_MATMUL_H_
