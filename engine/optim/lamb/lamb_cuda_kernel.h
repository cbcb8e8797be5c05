// LAMB's two passes on a GPU; bit for bit the CPU's (lamb_cpu_kernel.h) but for the order of the
// fp64 sums. Arguments as in kernels/cuda/flat_update.h.
#ifndef MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/optim/lamb/lamb_contract.h"

namespace milepost::kernels::cuda {

// m and v as AdamW has them, and of each tensor the sums of squares of p and of the update, which
// uses factors' `decay` and not its `rate`: norms[2 t] and norms[2 t + 1]. `ranges`: of the chunks
// of each tensor (device memory). `workspace`: LambWorkspaceBytes.
absl::Status LambMoments(const FlatUpdate<float>& update, const FlatRange* ranges,
                         int64_t tensor_count, double* norms, void* workspace, cudaStream_t stream);

// p -= rate * ratio * update, from the m and v that LambMoments left. The ratio is |p| / |update|
// by norms[2 n] and norms[2 n + 1] with the factors' n = `norms`; 1 where that is -1 or one of them
// is not positive.
template <typename T>
absl::Status LambApply(const FlatUpdate<T>& update, const double* norms, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CUDA_KERNEL_H_
