#include "engine/ops/preference/preference_binding.h"
#include "engine/ops/preference/preference_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

absl::StatusOr<BoundOp> BindPreferenceLoss(const CudaBinding& b) {
  const cuda::PreferenceOutputs outputs = {
      .sums = b.Output<double>(0),
      .scale = &b.control()->gradient_factors[b.attributes().head],
      .gradients = b.Output<float>(1)};
  return [args = PreferenceArgsOf(b), outputs, workspace = b.Workspace(),
          accumulation = b.OutputAccumulation(0), stream = b.stream()](const StepContext& context) {
    cuda::PreferenceOutputs now = outputs;
    now.accumulate = accumulation.At(context);
    return cuda::PreferenceLoss(args, now, workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kPreferenceLoss = {.bind = BindPreferenceLoss};
constinit const CudaOp kPreferenceLossBackward = {.bind = BindPreferenceLoss};

}  // namespace milepost::ops::gpu
