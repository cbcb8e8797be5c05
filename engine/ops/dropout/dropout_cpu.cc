#include "engine/kernels/cpu/elementwise.h"
#include "engine/ops/dropout/dropout_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::DropoutBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> DropoutOf(const Binding& b) {
  return [x = b.Input<T>(0), sum = b.Input<T>(1), n = graph::Elements(b.InputShape(0)),
          y = b.Output<T>(0),
          dropout = DropoutBinding(b, b.InputShape(0)[1])](const StepContext& context) {
    kernels::Dropout<T>(x, n, dropout.At(context), y);
    if (sum != nullptr) kernels::Add<T>(y, sum, n, y);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kDropout = {.bind = MP_BY_DTYPE(DropoutOf)};

}  // namespace milepost::ops::cpu
