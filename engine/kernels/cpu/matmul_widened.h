// A product of 16-bit factors as fp32 products of pieces, for what a CPU's matrix products do not
// know (f16 everywhere, bf16 without instructions for it): pieces of A and B are widened into
// scratch, multiplied and summed in fp32, and rounded once, at the end. Scratch is bounded (at most
// 8 MiB and what oneDNN asks for), whatever the sizes. Internal to matmul.cc.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_MATMUL_WIDENED_H_
#define MILEPOST_ENGINE_KERNELS_CPU_MATMUL_WIDENED_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "engine/kernels/cpu/matmul.h"

namespace milepost::kernels {

class WidenedProduct {
 public:
  // `spec`: A and B are kF16 or kBf16, C is of their type or kF32, checked, no packed_b.
  explicit WidenedProduct(const MatmulSpec& spec) : spec_(spec) {}

  // Bytes in front of the scratch of the fp32 products.
  size_t FixedBytes() const;
  // Every fp32 product that Run makes, some of them more than once.
  absl::Status ForEachSpec(const std::function<absl::Status(const MatmulSpec&)>& visit) const;
  // `cache` makes the fp32 products; their primitives exist if it was asked for their workspace.
  absl::Status Run(MatmulCache& cache, const void* a, const void* b, const void* bias, void* c,
                   void* workspace) const;

 private:
  struct Piece;
  struct Scratch;
  MatmulSpec SpecOf(const Piece& piece) const;
  template <typename Visit>
  absl::Status ForEachPiece(const Visit& visit) const;
  Scratch Carve(void* workspace) const;
  bool Rounds() const { return spec_.c != DType::kF32; }
  int64_t CRow() const { return spec_.c_row > 0 ? spec_.c_row : spec_.n; }
  template <typename T>
  void Widen(const Piece& piece, const T* a, const T* b, const void* bias,
             const Scratch& scratch) const;
  template <typename T>
  absl::Status RunAs(MatmulCache& cache, const T* a, const T* b, const void* bias, void* c,
                     void* workspace) const;

  const MatmulSpec spec_;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_MATMUL_WIDENED_H_
