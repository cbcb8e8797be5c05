// The workspace of LAMB's norms: a pair of f64 sums for each block of elements.
#ifndef MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CONTRACT_H_
#define MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CONTRACT_H_

#include <cstdint>

#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

// On the CPU.
inline int64_t LambWorkspaceBytes(int64_t n) { return 2 * SumSquaresWorkspaceBytes(n); }

namespace cuda {

inline int64_t LambWorkspaceBytes(int64_t chunk_count) {
  return chunk_count * 2 * static_cast<int64_t>(sizeof(double));
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CONTRACT_H_
