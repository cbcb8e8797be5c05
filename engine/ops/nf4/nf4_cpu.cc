#include "engine/ops/nf4/nf4_binding.h"
#include "engine/ops/nf4/nf4_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> UnpackNf4Of(const Binding& b) {
  return [parts = Nf4PartsOf<T>(b)](const StepContext&) {
    for (const Nf4Part<T>& part : parts) {
      kernels::UnpackNf4(part.packed, part.elements, part.out);
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kUnpackNf4 = {.bind = MP_BY_DTYPE(UnpackNf4Of)};

}  // namespace milepost::ops::cpu
