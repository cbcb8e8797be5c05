// A row times a matrix: y[n] = x[k] op(B)[k,n] (+ bias[n]). What a product with many rows is not:
// every element of B is read once and used once, so only memory counts, and B is read as it lies,
// in order, by all threads.
//
//   VectorProductArgs<bf16> args{.x = x, .b = w, .bias = bias, .n = out, .k = in};
//   VectorProduct<bf16>(args, y, workspace);
//
// Sums are fp32, rounded once; results do not depend on the thread count. Internal to matmul.cc.
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
};

// 64-byte aligned; 0: none.
size_t VectorProductWorkspaceBytes(int64_t n);

// T in {float, bf16, f16}, C is T or float. y may alias nothing that is read. Parallel over n.
template <typename T, typename C>
void VectorProduct(const VectorProductArgs<T>& args, C* y, void* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_VECTOR_PRODUCT_H_
