#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/ops/classifier/classifier_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> ClassifierLossOf(const CudaBinding& b) {
  const bool backward = b.planned.op.kind == OpKind::kClassifierLossBackward;
  // The kernels work in place; the loss alone only reads the logits.
  T* logits = const_cast<T*>(b.Input<T>(0));
  cuda::ClassifierArgs<T> args = {.logits = backward ? b.Output<T>(1) : logits,
                                  .targets = b.Input<int32_t>(1),
                                  .rows = b.InputShape(0)[0],
                                  .vocabulary = b.InputShape(0)[1],
                                  .smoothing = static_cast<float>(b.attributes().label_smoothing),
                                  .scale = &b.control()->gradient_factors[b.attributes().head],
                                  .sums = b.Output<double>(0)};
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::ClassifierWorkspaceBytes(args.rows)));
  return [args, logits, backward, accumulation = b.OutputAccumulation(0), workspace = b.Workspace(),
          stream = b.stream()](const StepContext& context) {
    cuda::ClassifierArgs<T> now = args;
    now.accumulate = accumulation.At(context);
    if (!backward) return cuda::ClassifierLoss(now, workspace, stream);
    if (logits != args.logits) {
      MP_RETURN_IF_ERROR(cuda::Cast(logits, args.rows * args.vocabulary, args.logits, stream));
    }
    return cuda::ClassifierLossAndGradient(now, workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kClassifierLoss = {.bind = MP_BY_DTYPE(ClassifierLossOf)};
constinit const CudaOp kClassifierLossBackward = {.bind = MP_BY_DTYPE(ClassifierLossOf)};

}  // namespace milepost::ops::gpu
