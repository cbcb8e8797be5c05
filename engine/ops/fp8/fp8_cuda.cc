#include "common/status_macros.h"
#include "engine/ops/fp8/fp8_cuda_kernel.h"
#include "engine/runtime/cpu/fp8_layer.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::Calibrates;
using runtime::CudaBinding;
using runtime::DeviceCall;
using runtime::DeviceCallOf;
using runtime::QuantizedTensors;
using runtime::QuantizesToE5M2;
using runtime::StackedOf;
using runtime::StepContext;

template <typename Code>
absl::StatusOr<BoundOp> QuantizeAs(const CudaBinding& b) {
  const int record = static_cast<int>(b.attributes().parts);
  return [x = StackedOf(b), record = const_cast<float*>(b.Input<float>(record)),
          codes = b.Output<Code>(0), codes_t = b.Output<Code>(1), slots = b.Output<float>(2),
          calibrates = Calibrates(b), stream = b.stream()](const StepContext& context) {
    const auto quantize = [&] {
      return cuda::Quantize(x, record, context.first_micro_step, codes, codes_t, slots, stream);
    };
    MP_RETURN_IF_ERROR(quantize());
    if (!calibrates || !context.new_scalings) return absl::OkStatus();
    MP_RETURN_IF_ERROR(cuda::CalibrateScaling(slots, record, stream));
    return quantize();
  };
}

absl::StatusOr<BoundOp> BindQuantize(const CudaBinding& b) {
  return QuantizesToE5M2(b) ? QuantizeAs<e5m2>(b) : QuantizeAs<e4m3>(b);
}

absl::StatusOr<BoundOp> BindGatherAmaxes(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  const int64_t tensors = QuantizedTensors(b);
  return [call, tensors, slots = BufferOf<float>(b, b.plan.amaxes),
          own = BufferOf<float>(b, b.plan.gathered_amaxes) + b.rank * tensors](const StepContext&) {
    MP_RETURN_IF_ERROR(cuda::CollectAmaxes(slots, tensors, own, call.stream));
    return call.Enqueue();
  };
}

absl::StatusOr<BoundOp> BindUpdateScalings(const CudaBinding& b) {
  return [amaxes = BufferOf<float>(b, b.plan.gathered_amaxes),
          records = BufferOf<float>(b, b.plan.scalings), tensors = QuantizedTensors(b),
          ranks = b.plan.options.world, control = b.memory.update,
          stream = b.stream()](const StepContext&) {
    return cuda::UpdateScalings(amaxes, ranks, tensors, control, records, stream);
  };
}

}  // namespace

constinit const CudaOp kQuantize = {.bind = BindQuantize};
constinit const CudaOp kGatherAmaxes = {.bind = BindGatherAmaxes};
constinit const CudaOp kUpdateScalings = {.bind = BindUpdateScalings};

}  // namespace milepost::ops::gpu
