// Magnitudes over low-rank adapters on the CPU (dora.h has the formula); T in {float, bf16, f16}.
// Parallel; results do not depend on the thread count. Workspaces are 64-byte aligned, and their
// sizes in dora_contract.h.
//
//   DoraNorms<bf16>({.out = 64, .in = 32, .rank = 8, ...});
//   DoraForward<bf16>(args, workspace);
#ifndef MILEPOST_ENGINE_OPS_DORA_DORA_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_DORA_DORA_CPU_KERNEL_H_

#include "engine/dtype/half.h"
#include "engine/ops/dora/dora_contract.h"

namespace milepost::kernels {

template <typename T>
void DoraNorms(const DoraNormsArgs<T>& args);

template <typename T>
void DoraForward(const DoraForwardArgs<T>& args, void* workspace);

template <typename T>
void DoraBackward(const DoraBackwardArgs<T>& args, void* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_DORA_DORA_CPU_KERNEL_H_
