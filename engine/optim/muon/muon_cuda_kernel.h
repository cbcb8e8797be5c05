// The pieces of Muon that are no matrix products, on a GPU; bit for bit the CPU's
// (muon_cpu_kernel.h). Arguments as in kernels/cuda/flat_update.h.
#ifndef MILEPOST_ENGINE_OPTIM_MUON_MUON_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_MUON_MUON_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/optim/muon/muon_contract.h"

namespace milepost::kernels::cuda {

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

#endif  // MILEPOST_ENGINE_OPTIM_MUON_MUON_CUDA_KERNEL_H_
