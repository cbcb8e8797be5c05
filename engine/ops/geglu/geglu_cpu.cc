#include "engine/ops/geglu/geglu_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> GeGluOf(const Binding& b) {
  const graph::Shape& shape = b.OutputShape(0);
  return [x = b.Input<T>(0), y = b.Output<T>(0), rows = shape[0],
          width = shape[1]](const StepContext&) {
    kernels::GeGluForward<T>(x, rows, width, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> GeGluBackwardOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(1);
  return [x = b.Input<T>(0), dy = b.Input<T>(1), dx = b.Output<T>(0), rows = shape[0],
          width = shape[1]](const StepContext&) {
    kernels::GeGluBackward<T>(x, dy, rows, width, dx);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kGeGlu = {.bind = MP_BY_DTYPE(GeGluOf)};
constinit const CpuOp kGeGluBackward = {.bind = MP_BY_DTYPE(GeGluBackwardOf)};

}  // namespace milepost::ops::cpu
