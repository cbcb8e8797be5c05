// The sum of squares of a flat buffer. Parallel; the same bits on any number of threads.
//
//   double sum = SumSquares(gradient, n, workspace);   // SumSquaresWorkspaceBytes(n), 8-byte
// aligned
#ifndef MILEPOST_ENGINE_KERNELS_CPU_SUM_SQUARES_H_
#define MILEPOST_ENGINE_KERNELS_CPU_SUM_SQUARES_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

// Sum of g[i]^2 in fp64: 4096-element blocks, then the blocks in order. Not finite exactly if some
// g[i] is not finite (a finite float's square cannot overflow fp64).
double SumSquares(const float* g, int64_t n, void* workspace);
double SumSquares(const bf16* g, int64_t n, void* workspace);  // the same of the widened values

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_SUM_SQUARES_H_
