#include "engine/kernels/cpu/elementwise.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> ScaleOf(const Binding& b) {
  return [x = b.Input<T>(0), n = graph::Elements(b.InputShape(0)), y = b.Output<T>(0),
          factor = static_cast<float>(b.attributes().scale)](const StepContext&) {
    kernels::ScaleTo<T>(x, n, factor, y);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kScale = {.bind = MP_BY_DTYPE(ScaleOf)};

}  // namespace milepost::ops::cpu
