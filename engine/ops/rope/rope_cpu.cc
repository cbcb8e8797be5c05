#include "engine/ops/rope/rope_binding.h"
#include "engine/ops/rope/rope_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

// Forward, and backward the other way.
template <typename T>
absl::StatusOr<BoundOp> RopeOf(const Binding& b) {
  return
      [shape = RopeShapeOf(b), x = b.Input<T>(0), table = b.Input<float>(1), out = b.Output<T>(0),
       forward = b.planned.op.kind == graph::OpKind::kRope](const StepContext&) {
        kernels::Rope<T>(shape, x, table, forward, out);
        return absl::OkStatus();
      };
}

absl::StatusOr<BoundOp> BindRopeTable(const Binding& b) {
  const graph::Shape& shape = b.OutputShape(0);
  return [params = RopeParamsOf(b), positions = b.Input<int32_t>(0), rows = shape[0],
          head_dim = shape[1], table = b.Output<float>(0)](const StepContext&) {
    kernels::RopeTable(params, positions, rows, head_dim, table);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kRopeTable = {.bind = BindRopeTable};
constinit const CpuOp kRope = {.bind = MP_BY_DTYPE(RopeOf)};
constinit const CpuOp kRopeBackward = {.bind = MP_BY_DTYPE(RopeOf)};

}  // namespace milepost::ops::cpu
