#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/sum_squares.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/group_ops.h"

namespace milepost::ops::cpu {
namespace {

using runtime::BindCall;
using runtime::Binding;
using runtime::BoundCall;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CallOf;
using runtime::GroupOf;
using runtime::HasLosses;
using runtime::NormsOfRank;
using runtime::PaddingOf;
using runtime::Scalars;
using runtime::Segment;
using runtime::ShardBegin;
using runtime::ShardGradient;
using runtime::StepContext;
using runtime::SummedShard;

absl::StatusOr<BoundOp> BindReduceGradients(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  const plan::FlatGroup& group = GroupOf(b);
  float* gradient = BufferOf<float>(b, group.gradient_buffer);
  std::vector<Segment> padding;
  if (b.plan.options.Shards() > 1) padding = PaddingOf(group);
  float* shard = SummedShard(b);
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
          rounded = ShardGradient<bf16>(b), count = group.shard_elements](const StepContext&) {
    for (const Segment& s : padding) std::fill(gradient + s.begin, gradient + s.end, 0.0F);
    kernels::CastToBf16(mine, count, rounded);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindReduceScalars(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  std::vector<size_t> slots;
  for (const size_t group : NormsOfRank(b)) slots.push_back(b.plan.ReducedScalars() + group);
  const int others = HasLosses(b) ? 0 : b.plan.ReducedScalars() - plan::LossScalar(0);
  return
      [call, scalars = Scalars(b), slots = std::move(slots), others](const StepContext& context) {
        double sum = 0;
        for (const size_t slot : slots) sum += scalars[slot];
        std::fill_n(scalars + plan::LossScalar(0), others, 0.0);
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
  const int64_t element = ByteSize(group.parameter_dtype);
  char* whole = b.BufferAt(b.program.places[b.OutputId(0)].buffer);
  return [call, mine = whole + ShardBegin(b) * element, shard = b.BufferAt(group.parameter_buffer),
          bytes = static_cast<size_t>(group.shard_elements * element)](const StepContext& context) {
    std::memcpy(mine, shard, bytes);
    return call.Run(context);
  };
}

// Of `count` elements of the shard: those that are this rank's to measure.
template <typename T>
BoundOp GradNormOf(const Binding& b, int64_t count) {
  const int64_t slice = GroupOf(b).SliceOf(b.plan.options, b.rank);
  const T* gradient = ShardGradient<T>(b) + count * slice;
  double* slot = Scalars(b) + b.plan.ReducedScalars() + b.attributes().group;
  return [gradient, count, slot, workspace = b.Workspace()](const StepContext&) {
    *slot = kernels::SumSquares(gradient, count, workspace);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindGradNorm(const Binding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const int64_t count = group.padded_elements / group.Ranks(b.plan.options);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(kernels::SumSquaresWorkspaceBytes(count)));
  return b.plan.options.RoundsGradients() ? GradNormOf<bf16>(b, count)
                                          : GradNormOf<float>(b, count);
}

}  // namespace

constinit const CpuOp kReduceGradients = {.bind = BindReduceGradients};
constinit const CpuOp kRoundGradients = {.bind = BindRoundGradients};
constinit const CpuOp kGradNorm = {.bind = BindGradNorm};
constinit const CpuOp kReduceScalars = {.bind = BindReduceScalars};
constinit const CpuOp kGatherParameters = {.bind = BindGatherParameters};
constinit const CpuOp kReduceReplicas = {.bind = BindCall};
constinit const CpuOp kReduceShared = {.bind = BindCall};
constinit const CpuOp kReduceParts = {.bind = BindCall};

}  // namespace milepost::ops::cpu
