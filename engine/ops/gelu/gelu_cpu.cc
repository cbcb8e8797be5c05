#include "engine/kernels/cpu/elementwise.h"
#include "engine/ops/gelu/gelu_erf_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> GeluOf(const Binding& b) {
  const auto run = b.attributes().exact ? kernels::GeluErfForward<T> : kernels::GeluForward<T>;
  return [run, x = b.Input<T>(0), n = graph::Elements(b.InputShape(0)),
          y = b.Output<T>(0)](const StepContext&) {
    run(x, n, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> GeluBackwardOf(const Binding& b) {
  const auto run = b.attributes().exact ? kernels::GeluErfBackward<T> : kernels::GeluBackward<T>;
  return [run, x = b.Input<T>(0), dy = b.Input<T>(1), n = graph::Elements(b.InputShape(0)),
          dx = b.Output<T>(0)](const StepContext&) {
    run(x, dy, n, dx);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kGelu = {.bind = MP_BY_DTYPE(GeluOf)};
constinit const CpuOp kGeluBackward = {.bind = MP_BY_DTYPE(GeluBackwardOf)};

}  // namespace milepost::ops::cpu
