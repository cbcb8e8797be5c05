// A row, or a few, times a matrix: y[n] = x[k] op(B)[k,n] (+ bias[n]) of each. What a product with
// many rows is not: every element of B is read once from memory and little is done with it, so only
// memory counts, and B is read as it lies, in order, by all threads.
//
//   VectorProductArgs<bf16> args{.x = x, .b = w, .bias = bias, .n = out, .k = in};
//   VectorProduct<bf16>(args, y, workspace);
//
// Sums are fp32, rounded once. Results do not depend on the thread count, nor a row's on the other
// rows or on its place among them. Internal to matmul.cc.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_VECTOR_PRODUCT_H_
#define MILEPOST_ENGINE_KERNELS_CPU_VECTOR_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::kernels {

template <typename T>
struct VectorProductArgs {
  const T* x = nullptr;
  const T* b = nullptr;
  const T* bias = nullptr;  // or null
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_b = false;  // B is stored [n,k]
  int64_t rows = 1;
  int64_t x_row = 0;  // elements from one row of x to the next; of one row they do not count
  int64_t y_row = 0;  // the same of y
};

// Where C is not float. 64-byte aligned.
size_t VectorProductWorkspaceBytes(int64_t rows, int64_t n);

// T in {float, bf16, f16}, C is T or float. y may alias nothing that is read. Parallel over n.
template <typename T, typename C>
void VectorProduct(const VectorProductArgs<T>& args, C* y, void* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_VECTOR_PRODUCT_H_
