#include "engine/ops/preference/preference_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/preference/preference_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

absl::Status PreferenceLoss(const PreferenceArgs& args, const PreferenceOutputs& outputs,
                            void* workspace, cudaStream_t stream) {
  return RunPreference(args, outputs, static_cast<RowLoss*>(workspace), [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "PreferenceLoss");
  });
}

}  // namespace milepost::kernels::cuda
