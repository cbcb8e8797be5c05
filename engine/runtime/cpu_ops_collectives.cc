// The communication stream's ops on the CPU: each is the call that CollectiveOf tells, and what is
// done to the values around it.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/plan/statistics.h"
#include "engine/runtime/collectives.h"
#include "engine/runtime/cpu_ops.h"
#include "engine/runtime/fp8_layer.h"
#include "engine/runtime/group_ops.h"

namespace milepost::runtime {
namespace {

// An op's call, if it has one.
struct BoundCall {
  absl::Status Run(const StepContext& context) const {
    if (!call.has_value()) return absl::OkStatus();
    // Every rank has the same reduced norm, so all of them skip or none.
    if (call->of_update && context.skip_update) return absl::OkStatus();
    return CallOnHost(*call, data, *communicator);
  }

  std::optional<Collective> call;
  char* data = nullptr;
  comm::Communicator* communicator = nullptr;
};

absl::StatusOr<BoundCall> CallOf(const Binding& b) {
  BoundCall bound = {.communicator = b.communicator};
  MP_ASSIGN_OR_RETURN(bound.call, CollectiveOf(b.plan, b.program, b.planned, b.rank));
  if (!bound.call.has_value()) return bound;
  bound.data = b.arena + bound.call->offset;
  if (b.communicator != nullptr) return bound;
  return absl::InternalError(
      absl::StrCat(graph::Name(b.planned.op.kind), " is planned, but there is no communicator"));
}

}  // namespace

absl::StatusOr<BoundOp> BindCall(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  return [call](const StepContext& context) { return call.Run(context); };
}

absl::StatusOr<BoundOp> BindReduceGradients(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  const plan::FlatGroup& group = GroupOf(b);
  float* gradient = BufferOf<float>(b, group.gradient_buffer);
  std::vector<Segment> padding;
  if (b.plan.options.Shards() > 1) padding = PaddingOf(group);
  const bool adds = b.plan.options.ShardsGradients() && !b.plan.options.RoundsGradients();
  float* shard = adds ? ShardGradient(b) : nullptr;
  return [call, gradient, padding = std::move(padding), shard, mine = gradient + ShardBegin(b),
          count = group.shard_elements](const StepContext& context) {
    for (const Segment& s : padding) std::fill(gradient + s.begin, gradient + s.end, 0.0F);
    MP_RETURN_IF_ERROR(call.Run(context));
    if (shard == nullptr) return absl::OkStatus();
    if (context.first_micro_step) {
      std::copy(mine, mine + count, shard);
    } else {
      for (int64_t i = 0; i < count; ++i) shard[i] += mine[i];
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindRoundGradients(const Binding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  float* gradient = BufferOf<float>(b, group.gradient_buffer);
  std::vector<Segment> padding;  // where shards are reduced it is zeros already
  if (b.plan.options.Shards() == 1) padding = PaddingOf(group);
  return [gradient, padding = std::move(padding), mine = gradient + ShardBegin(b),
          rounded = ShardGradient<kernels::bf16>(b),
          count = group.shard_elements](const StepContext&) {
    for (const Segment& s : padding) std::fill(gradient + s.begin, gradient + s.end, 0.0F);
    kernels::CastToBf16(mine, count, rounded);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindReduceScalars(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  std::vector<size_t> slots;  // in group order
  for (size_t g = 0; g < b.plan.groups.size(); ++g) {
    if (!b.plan.groups[g].frozen) slots.push_back(b.plan.ReducedScalars() + g);
  }
  return [call, scalars = Scalars(b), slots = std::move(slots)](const StepContext& context) {
    double sum = 0;
    for (const size_t slot : slots) sum += scalars[slot];
    scalars[plan::kNormScalar] = sum;
    scalars[plan::kStopScalar] = context.stop_requested ? 1 : 0;
    return call.Run(context);
  };
}

// In place, or every rank's shard, the padding in it too, into a buffer of whole parameters.
absl::StatusOr<BoundOp> BindGatherParameters(const Binding& b) {
  if (b.planned.op.outputs.empty()) return BindCall(b);
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  const plan::FlatGroup& group = GroupOf(b);
  const int64_t element = graph::ByteSize(b.plan.options.compute_dtype);
  char* whole = b.BufferAt(b.program.places[b.OutputId(0)].buffer);
  return [call, mine = whole + ShardBegin(b) * element, shard = b.BufferAt(group.parameter_buffer),
          bytes = static_cast<size_t>(group.shard_elements * element)](const StepContext& context) {
    std::memcpy(mine, shard, bytes);
    return call.Run(context);
  };
}

absl::StatusOr<BoundOp> BindReduceStatistics(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  return [call, from = b.Input<double>(0), sums = b.Output<double>(0),
          count = graph::Elements(b.OutputShape(0))](const StepContext& context) {
    if (from != sums) std::copy_n(from, count, sums);
    return call.Run(context);
  };
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

absl::StatusOr<BoundOp> BindAverageStatistics(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  float* statistics = BufferOf<float>(b, b.plan.statistics);
  const int64_t count = plan::LayOutStatistics(b.program.graph).f32_elements;
  const float share = 1.0F / static_cast<float>(b.plan.options.world);
  return [call, statistics, count, share](const StepContext& context) {
    MP_RETURN_IF_ERROR(call.Run(context));
    for (int64_t i = 0; i < count; ++i) statistics[i] *= share;
    return absl::OkStatus();
  };
}

}  // namespace milepost::runtime
