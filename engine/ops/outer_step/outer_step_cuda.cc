#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/ops/outer_step/outer_step_binding.h"
#include "engine/ops/outer_step/outer_step_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

absl::StatusOr<BoundOp> BindKeepAnchors(const CudaBinding& b) {
  return [shard = OuterShard(b), stream = b.stream()](const StepContext&) {
    return cuda::Cast(shard.master, shard.elements, shard.anchor, stream);
  };
}

absl::StatusOr<BoundOp> BindOuterUpdate(const CudaBinding& b) {
  return [shard = OuterShard(b), stream = b.stream()](const StepContext&) {
    const int64_t n = shard.elements;
    for (float* state : shard.states) {
      MP_RETURN_IF_ERROR(cuda::Scale(state, n, shard.step.share, stream));
    }
    MP_RETURN_IF_ERROR(
        cuda::OuterUpdate(shard.step, n, shard.master, shard.anchor, shard.momentum, stream));
    if (shard.parameters == nullptr) return absl::OkStatus();
    return cuda::Cast(shard.master, n, shard.parameters, stream);
  };
}

}  // namespace

constinit const CudaOp kKeepAnchors = {.bind = BindKeepAnchors};
constinit const CudaOp kAverageIslands = {.bind = runtime::BindCall};
constinit const CudaOp kOuterUpdate = {.bind = BindOuterUpdate};

}  // namespace milepost::ops::gpu
