#include "engine/ops/rope/rope_binding.h"
#include "engine/ops/rope/rope_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

// Forward, and backward the other way.
template <typename T>
absl::StatusOr<BoundOp> RopeOf(const CudaBinding& b) {
  return [shape = RopeShapeOf(b), x = b.Input<T>(0), table = b.Input<float>(1),
          out = b.Output<T>(0), forward = b.planned.op.kind == OpKind::kRope, stream = b.stream()](
             const StepContext&) { return cuda::Rope<T>(shape, x, table, forward, out, stream); };
}

absl::StatusOr<BoundOp> BindRopeTable(const CudaBinding& b) {
  const graph::Shape& shape = b.OutputShape(0);
  return
      [params = RopeParamsOf(b), positions = b.Input<int32_t>(0), rows = shape[0],
       head_dim = shape[1], table = b.Output<float>(0), stream = b.stream()](const StepContext&) {
        return cuda::RopeTable(params, positions, rows, head_dim, table, stream);
      };
}

}  // namespace

constinit const CudaOp kRopeTable = {.bind = BindRopeTable};
constinit const CudaOp kRope = {.bind = MP_BY_DTYPE(RopeOf)};
constinit const CudaOp kRopeBackward = {.bind = MP_BY_DTYPE(RopeOf)};

}  // namespace milepost::ops::gpu
