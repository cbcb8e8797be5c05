#include "engine/kernels/cpu/elementwise.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> AddOf(const Binding& b) {
  return [x = b.Input<T>(0), y = b.Input<T>(1), n = graph::Elements(b.InputShape(0)),
          sum = b.Output<T>(0)](const StepContext&) {
    kernels::Add<T>(x, y, n, sum);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kAdd = {.bind = MP_BY_DTYPE(AddOf)};

}  // namespace milepost::ops::cpu
