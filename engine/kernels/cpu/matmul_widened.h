// A product of 16-bit factors for what a CPU's matrix products do not know (f16 everywhere, bf16
// without instructions for it): blocks of A and B are widened as they are packed, multiplied and
// summed in fp32 (panel_product.h), and rounded once, at the end. oneDNN's own fp32 products would
// take memory that no plan knows of. Scratch is bounded (8.1 MiB and 54 KiB a thread), whatever the
// sizes. Internal to matmul.cc.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_MATMUL_WIDENED_H_
#define MILEPOST_ENGINE_KERNELS_CPU_MATMUL_WIDENED_H_

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul.h"

namespace milepost::kernels {

class WidenedProduct {
 public:
  // `spec`: A and B are kF16 or kBf16, C is of their type or kF32, checked, no packed_b.
  // `threads`: MaxThreads() of the thread that runs it.
  WidenedProduct(const MatmulSpec& spec, int threads);

  size_t WorkspaceBytes() const;
  // The arguments are those of MatmulCache::Execute. The same bits with any number of threads.
  void Run(const void* a, const void* b, const void* bias, void* c, void* workspace) const;

 private:
  struct Piece;
  struct Block;
  struct Scratch;
  template <typename T>
  struct Operands;
  Scratch Carve(void* workspace) const;
  bool Rounds() const { return spec_.c != DType::kF32; }
  template <typename T>
  void RunAs(const Operands<T>& operands, const Scratch& scratch) const;
  template <typename T>
  void PackB(const Operands<T>& operands, const Piece& piece, const Scratch& scratch) const;
  template <typename T>
  void Begin(const Operands<T>& operands, const Block& block, const float* bias, float* sums,
             int64_t row) const;
  template <typename T>
  void Multiply(const Operands<T>& operands, const Piece& piece, const Block& block, float* packed,
                const Scratch& scratch) const;
  template <typename T>
  void MultiplyShare(const Operands<T>& operands, const Piece& piece, int64_t share,
                     const Scratch& scratch) const;

  const MatmulSpec spec_;
  const int64_t threads_;
  const int64_t a_row_, b_row_, c_row_;
  const int64_t sums_row_;  // of C's sums in scratch
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_MATMUL_WIDENED_H_
