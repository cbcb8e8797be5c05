// The pieces of LAMB and Muon that are no matrix products; bit for bit the CPU's
// (lamb_cpu_kernel.h, muon_cpu_kernel.h) but for the order of LAMB's fp64 sums. Arguments as in
// optimizer.h.
#ifndef MILEPOST_ENGINE_OPS_OPTIMIZER_LAMB_MUON_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_OPTIMIZER_LAMB_MUON_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/optimizer/optimizer_contract.h"
#include "engine/ops/optimizer/optimizer_cuda_kernel.h"

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

// m = momentum m + (1 - momentum) g;  u = nesterov ? momentum m + (1 - momentum) g : m, of n
// elements; g is multiplied by the control's scale, and a skipped step changes nothing.
absl::Status MuonMomentum(const StepFactors* step, bool nesterov, const UpdateControl* control,
                          int64_t n, float* m, const float* g, float* u, cudaStream_t stream);

// x *= 1 / max(sqrt(*sum_squares), 1e-7): before the first iteration.
absl::Status MuonNormalise(const double* sum_squares, int64_t n, float* x, cudaStream_t stream);

// out = x / max(sqrt(*sum_squares), 1e-7) in bf16: x, the root and the quotient are rounded.
absl::Status MuonNormalise(const double* sum_squares, int64_t n, const float* x, bf16* out,
                           cudaStream_t stream);

// y = b x + c y: between the iterations' products.
absl::Status MuonMix(float b, float c, int64_t n, const float* x, float* y, cudaStream_t stream);

// x = the rounded b x + c y, or out where it is another.
absl::Status MuonMix(float b, float c, int64_t n, const bf16* x, const float* y, bf16* out,
                     cudaStream_t stream);

// p = shrink p - rate g, where g is the orthogonalised update; m and v are not read.
template <typename T>
absl::Status MuonApply(const FlatUpdate<T>& update, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_OPTIMIZER_LAMB_MUON_CUDA_KERNEL_H_
