#include "engine/ops/swiglu/swiglu_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> SwiGluOf(const Binding& b) {
  const graph::Shape& shape = b.OutputShape(0);
  return [x = b.Input<T>(0), y = b.Output<T>(0), rows = shape[0],
          width = shape[1]](const StepContext&) {
    kernels::SwiGluForward<T>(x, rows, width, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> SwiGluBackwardOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(1);
  return [x = b.Input<T>(0), dy = b.Input<T>(1), dx = b.Output<T>(0), rows = shape[0],
          width = shape[1]](const StepContext&) {
    kernels::SwiGluBackward<T>(x, dy, rows, width, dx);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kSwiGlu = {.bind = MP_BY_DTYPE(SwiGluOf)};
constinit const CpuOp kSwiGluBackward = {.bind = MP_BY_DTYPE(SwiGluBackwardOf)};

}  // namespace milepost::ops::cpu
