// Matrix products through oneDNN: C[m,n] (+)= op(A)[m,k] * op(B)[k,n] (+ bias[n]), row-major. Those
// of single rows are our own (vector_product.h).
//
//   MatmulCache cache;
//   MatmulSpec forward{.m = tokens, .n = out, .k = in, .a = kBf16, .b = kBf16, .c = kBf16,
//                      .bias = true};
//   MP_ASSIGN_OR_RETURN(size_t bytes, cache.WorkspaceBytes(forward));   // while planning
//   MP_RETURN_IF_ERROR(cache.Execute(forward, x, w, bias, y, workspace));
//
// The spec: linear_contract.h.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_MATMUL_H_
#define MILEPOST_ENGINE_KERNELS_CPU_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/cpu_features.h"
#include "engine/ops/linear/linear_contract.h"

namespace milepost::kernels {

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
