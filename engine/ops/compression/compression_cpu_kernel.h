// What gradients that travel as factors need beside matrix products.
//
//   MakeOrthonormal(4, n, rows, [&](int64_t row, float* at) { ... n random numbers ... });
//   AddScaled(2, gradient, n, error);
//
// AddScaled is parallel, MakeOrthonormal serial; neither depends on the thread count.
#ifndef MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CPU_KERNEL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace milepost::kernels {

// Gram-Schmidt over `count` rows of n elements, count <= n, in place. A row is made orthogonal to
// those before it twice, with sums in fp64, so that what rounding has left is gone too. Of a row
// that depends on those before it, or is zeros, nothing but rounding is left: draw(row, at) gives
// another. Else a matrix that was zeros once would have that factor for good. A row with a NaN or
// an infinity keeps one.
void MakeOrthonormal(int64_t count, int64_t n, float* rows,
                     absl::FunctionRef<void(int64_t row, float* at)> draw);

// out += factor * x, the product rounded by itself.
void AddScaled(float factor, const float* x, int64_t n, float* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CPU_KERNEL_H_
