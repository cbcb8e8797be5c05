#include <vector>

#include "engine/ops/nf4/nf4_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> UnpackNf4Of(const Binding& b) {
  struct Part {
    const uint8_t* packed;
    int64_t elements;
    T* out;
  };
  std::vector<Part> parts;
  for (int i = 0; i < static_cast<int>(b.planned.op.outputs.size()); ++i) {
    parts.push_back({b.Input<uint8_t>(i), graph::Elements(b.OutputShape(i)), b.Output<T>(i)});
  }
  return [parts = std::move(parts)](const StepContext&) {
    for (const Part& part : parts) kernels::UnpackNf4(part.packed, part.elements, part.out);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kUnpackNf4 = {.bind = MP_BY_DTYPE(UnpackNf4Of)};

}  // namespace milepost::ops::cpu
