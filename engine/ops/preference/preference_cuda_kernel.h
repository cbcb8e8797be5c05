// The loss over pairs of documents on a GPU; semantics of the CPU's (preference_cpu_kernel.h).
#ifndef MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CUDA_KERNEL_H_

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/preference/preference_contract.h"

namespace milepost::kernels::cuda {

struct PreferenceOutputs {
  double* sums = nullptr;        // graph::kLossSums: loss, pairs, correct (0 with gradients)
  bool accumulate = false;       // sums += instead of =
  const float* scale = nullptr;  // device: of gradients
  float* gradients = nullptr;    // null: the sums alone
};

// `workspace`: ClassifierWorkspaceBytes of the batch, 8-byte aligned. Asynchronous.
absl::Status PreferenceLoss(const PreferenceArgs& args, const PreferenceOutputs& outputs,
                            void* workspace, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CUDA_KERNEL_H_
