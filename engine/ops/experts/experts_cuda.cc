// A GPU has no kernels for experts yet: common/spec refuses such jobs before.
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

using runtime::BoundOp;
using runtime::CudaBinding;

absl::StatusOr<BoundOp> RefuseExperts(const CudaBinding&) {
  return absl::UnimplementedError(
      "model.llama.experts: there are no kernels of experts for a GPU; choose resources.device: "
      "cpu");
}

}  // namespace

constinit const CudaOp kRouteExperts = {.bind = RefuseExperts};
constinit const CudaOp kRouteExpertsBackward = {.bind = RefuseExperts};
constinit const CudaOp kDispatchRows = {.bind = RefuseExperts};
constinit const CudaOp kDispatchRowsBackward = {.bind = RefuseExperts};
constinit const CudaOp kExpertLinear = {.bind = RefuseExperts};
constinit const CudaOp kExpertLinearBackwardInput = {.bind = RefuseExperts};
constinit const CudaOp kExpertLinearBackwardWeight = {.bind = RefuseExperts};
constinit const CudaOp kCombineRows = {.bind = RefuseExperts};
constinit const CudaOp kCombineRowsBackward = {.bind = RefuseExperts};
constinit const CudaOp kExpertBalance = {.bind = RefuseExperts};

}  // namespace milepost::ops::gpu
