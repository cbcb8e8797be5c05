#include "engine/ops/pooling/pooling_binding.h"
#include "engine/ops/pooling/pooling_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/image_ops.h"

namespace milepost::ops::cpu {
namespace {

using graph::OpKind;
using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> MaxPoolOf(const Binding& b) {
  return [spec = PoolOf(b, b.InputShape(0)), x = b.Input<T>(0), y = b.Output<T>(0),
          winners = b.Output<uint8_t>(1)](const StepContext&) {
    kernels::MaxPoolForward<T>(spec, x, y, winners);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> MaxPoolBackwardOf(const Binding& b) {
  return [spec = PoolOf(b, b.OutputShape(0)), winners = b.Input<uint8_t>(0), dy = b.Input<T>(1),
          dy2 = b.Input<T>(2), dx = b.Output<T>(0)](const StepContext&) {
    kernels::MaxPoolBackward<T>(spec, winners, dy, dy2, dx);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> AveragePoolOf(const Binding& b) {
  const bool forward = b.planned.op.kind == OpKind::kAveragePool;
  const graph::Shape& images = forward ? b.InputShape(0) : b.OutputShape(0);
  return [forward, batch = images[0], pixels = images[1] * images[2], channels = images[3],
          in = b.Input<T>(0), out = b.Output<T>(0)](const StepContext&) {
    if (forward) {
      kernels::AveragePoolForward<T>(in, batch, pixels, channels, out);
    } else {
      kernels::AveragePoolBackward<T>(in, batch, pixels, channels, out);
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kMaxPool = {.bind = MP_F32_OR_BF16(MaxPoolOf)};
constinit const CpuOp kMaxPoolBackward = {.bind = MP_F32_OR_BF16(MaxPoolBackwardOf)};
constinit const CpuOp kAveragePool = {.bind = MP_F32_OR_BF16(AveragePoolOf)};
constinit const CpuOp kAveragePoolBackward = {.bind = MP_F32_OR_BF16(AveragePoolOf)};

}  // namespace milepost::ops::cpu
