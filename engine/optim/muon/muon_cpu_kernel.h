// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): momentum,
// then the nearest semi-orthogonal matrix, roughly, by Newton-Schulz iterations, in fp32 or bf16.
//
//   MuonMomentum({.momentum = 0.95f, .gradient_scale = clip}, n, m, g, u);   // any piece
//   MP_RETURN_IF_ERROR(Orthogonalize({shape, dtype}, 5, cache, u, workspace));  // a whole matrix
//   MuonApply<bf16>(shrink, step, n, p, u, parameter);                       // any piece
//
// Parallel; results do not depend on the thread count but as far as the products' do.
#ifndef MILEPOST_ENGINE_OPTIM_MUON_MUON_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_MUON_MUON_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/optim/muon/muon_contract.h"

namespace milepost::kernels {

// m = momentum * m + (1 - momentum) * g;  u = nesterov ? momentum * m + (1 - momentum) * g : m, as
// torch.optim.Muon has it.
void MuonMomentum(const MuonParams& params, int64_t n, float* m, const float* g, float* u);

// p = shrink * p - step * u. `copy` (nullable) receives p as T.
template <typename T>
void MuonApply(float shrink, float step, int64_t n, float* p, const float* u, T* copy);

// x / max(|x|, 1e-7), then `steps` times x = a x + (b A + c A A) x with A = x x^T (of the smaller
// side) and (a, b, c) = (3.4445, -4.7750, 2.0315): singular values end near 1. In bf16, as
// torch.optim.Muon has it, x and its norm are rounded before the division, and what comes of it, A,
// b A + c A A and each next x after it, each once, after sums in fp32.
// In place. Allocates nothing once the cache has the products. `workspace`: 64-byte aligned.
absl::Status Orthogonalize(const MuonMatrix& matrix, int64_t steps, MatmulCache& cache, float* x,
                           char* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_MUON_MUON_CPU_KERNEL_H_
