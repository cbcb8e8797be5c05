#include <algorithm>

#include "common/status_macros.h"
#include "engine/ops/fp8/fp8_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/fp8_layer.h"
#include "engine/runtime/executor/group_ops.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundCall;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::Calibrates;
using runtime::CallOf;
using runtime::QuantizedTensors;
using runtime::QuantizesToE5M2;
using runtime::StackedOf;
using runtime::StepContext;

template <typename Code>
absl::StatusOr<BoundOp> QuantizeAs(const Binding& b) {
  const int record = static_cast<int>(b.attributes().parts);
  return [x = StackedOf(b), record = const_cast<float*>(b.Input<float>(record)),
          codes = b.Output<Code>(0), codes_t = b.Output<Code>(1), slots = b.Output<float>(2),
          calibrates = Calibrates(b)](const StepContext& context) {
    const auto quantize = [&] {
      kernels::Quantize(x, record, context.first_micro_step, codes, codes_t, slots);
    };
    quantize();
    if (!calibrates || !context.new_scalings) return absl::OkStatus();
    kernels::SetScale(kernels::AmaxOf(slots), record);
    quantize();
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindQuantize(const Binding& b) {
  return QuantizesToE5M2(b) ? QuantizeAs<e5m2>(b) : QuantizeAs<e4m3>(b);
}

absl::StatusOr<BoundOp> BindGatherAmaxes(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  const int64_t tensors = QuantizedTensors(b);
  return [call, tensors, slots = BufferOf<float>(b, b.plan.amaxes),
          own = BufferOf<float>(b, b.plan.gathered_amaxes) +
                b.rank * tensors](const StepContext& context) {
    for (int64_t t = 0; t < tensors; ++t) {
      own[t] = kernels::AmaxOf(slots + t * kernels::kAmaxSlots);
    }
    return call.Run(context);
  };
}

absl::StatusOr<BoundOp> BindUpdateScalings(const Binding& b) {
  return [amaxes = reinterpret_cast<const float*>(b.BufferAt(b.plan.gathered_amaxes)),
          records = reinterpret_cast<float*>(b.BufferAt(b.plan.scalings)),
          tensors = QuantizedTensors(b), ranks = b.plan.options.world](const StepContext& context) {
    if (context.skip_update) return absl::OkStatus();
    for (int64_t t = 0; t < tensors; ++t) {
      float amax = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        amax = std::max(amax, amaxes[rank * tensors + t]);
      }
      kernels::UpdateScaling(amax, records + t * kernels::kScalingFloats);
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kQuantize = {.bind = BindQuantize};
constinit const CpuOp kGatherAmaxes = {.bind = BindGatherAmaxes};
constinit const CpuOp kUpdateScalings = {.bind = BindUpdateScalings};

}  // namespace milepost::ops::cpu
