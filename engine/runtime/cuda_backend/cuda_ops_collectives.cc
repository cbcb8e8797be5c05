// The communication stream's ops on a GPU: each is the call that CollectiveOf tells, and kernels
// around it on the same stream.
#include "engine/runtime/cuda_backend/device_call.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/collectives.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/plan/statistics.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"
#include "engine/runtime/group_ops.h"

namespace milepost::runtime {

using graph::OpKind;

absl::StatusOr<DeviceCall> DeviceCallOf(const CudaBinding& b) {
  DeviceCall bound = {.communicator = b.services.communicator,
                      .arena = b.arena,
                      .scratch = b.Workspace(),
                      .stream = b.stream()};
  MP_ASSIGN_OR_RETURN(bound.call, CollectiveOf(b.plan, b.program, b.planned, b.rank));
  if (!bound.call.has_value()) return bound;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(CollectiveScratchBytes(*bound.call)));
  if (b.services.communicator != nullptr) return bound;
  return absl::InternalError(
      absl::StrCat(graph::Name(b.planned.op.kind), " is planned, but there is no communicator"));
}

namespace {

absl::StatusOr<BoundOp> BindCall(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  return [call](const StepContext&) { return call.Enqueue(); };
}

std::vector<kernels::cuda::FlatRange> RangesOf(const std::vector<Segment>& segments) {
  std::vector<kernels::cuda::FlatRange> ranges;
  for (const Segment& s : segments) ranges.push_back({s.begin, s.end});
  return ranges;
}

absl::StatusOr<BoundOp> BindReduceGradients(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  const plan::FlatGroup& group = GroupOf(b);
  std::vector<kernels::cuda::FlatChunk> padding;
  if (b.plan.options.Shards() > 1) padding = kernels::cuda::MakeChunks(RangesOf(PaddingOf(group)));
  MP_ASSIGN_OR_RETURN(const kernels::cuda::FlatChunk* chunks, b.services.tables->Upload(padding));
  float* gradient = BufferOf<float>(b, group.gradient_buffer);
  const bool adds = b.plan.options.ShardsGradients() && !b.plan.options.RoundsGradients();
  float* shard = adds ? ShardGradient(b) : nullptr;
  return [call, chunks, chunk_count = static_cast<int64_t>(padding.size()), gradient, shard,
          mine = gradient + ShardBegin(b),
          count = group.shard_elements](const StepContext& context) {
    if (chunk_count > 0) {
      MP_RETURN_IF_ERROR(kernels::cuda::ZeroRanges(chunks, chunk_count, gradient, call.stream));
    }
    MP_RETURN_IF_ERROR(call.Enqueue());
    if (shard == nullptr) return absl::OkStatus();
    return context.first_micro_step ? kernels::cuda::Cast(mine, count, shard, call.stream)
                                    : kernels::cuda::Accumulate(mine, count, shard, call.stream);
  };
}

absl::StatusOr<BoundOp> BindRoundGradients(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  std::vector<kernels::cuda::FlatChunk> padding;  // where shards are reduced it is zeros already
  if (b.plan.options.Shards() == 1) padding = kernels::cuda::MakeChunks(RangesOf(PaddingOf(group)));
  MP_ASSIGN_OR_RETURN(const kernels::cuda::FlatChunk* chunks, b.services.tables->Upload(padding));
  float* gradient = BufferOf<float>(b, group.gradient_buffer);
  return [chunks, chunk_count = static_cast<int64_t>(padding.size()), gradient,
          mine = gradient + ShardBegin(b), rounded = ShardGradient<kernels::bf16>(b),
          count = group.shard_elements, stream = b.stream()](const StepContext&) {
    if (chunk_count > 0) {
      MP_RETURN_IF_ERROR(kernels::cuda::ZeroRanges(chunks, chunk_count, gradient, stream));
    }
    return kernels::cuda::Cast(mine, count, rounded, stream);
  };
}

// Every rank's shard, the padding in it too, into a buffer of whole parameters.
template <typename T>
absl::StatusOr<BoundOp> GatherFromShards(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  const plan::FlatGroup& group = GroupOf(b);
  T* whole = BufferOf<T>(b, b.program.places[b.OutputId(0)].buffer);
  return [call, mine = whole + ShardBegin(b), shard = BufferOf<T>(b, group.parameter_buffer),
          count = group.shard_elements](const StepContext&) {
    MP_RETURN_IF_ERROR(kernels::cuda::Cast(shard, count, mine, call.stream));
    return call.Enqueue();
  };
}

absl::StatusOr<BoundOp> BindReduceStatistics(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  // Sums of two f64 for each channel, moved as they are.
  const int64_t floats = 2 * graph::Elements(b.OutputShape(0));
  return [call, from = b.Input<float>(0), sums = b.Output<float>(0), floats](const StepContext&) {
    if (from != sums) {
      MP_RETURN_IF_ERROR(kernels::cuda::Cast(from, floats, sums, call.stream));
    }
    return call.Enqueue();
  };
}

absl::StatusOr<BoundOp> BindAverageStatistics(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  float* statistics = BufferOf<float>(b, b.plan.statistics);
  const int64_t count = plan::LayOutStatistics(b.program.graph).f32_elements;
  const float share = 1.0F / static_cast<float>(b.plan.options.world);
  return [call, statistics, count, share](const StepContext&) {
    MP_RETURN_IF_ERROR(call.Enqueue());
    return kernels::cuda::Scale(statistics, count, share, call.stream);
  };
}

}  // namespace

absl::StatusOr<BoundOp> BindCollective(const CudaBinding& b) {
  switch (b.planned.op.kind) {
    case OpKind::kReduceGradients:
      return BindReduceGradients(b);
    case OpKind::kRoundGradients:
      return BindRoundGradients(b);
    case OpKind::kGatherParameters:
      return b.planned.op.outputs.empty() ? BindCall(b) : MP_BIND_BY_DTYPE(GatherFromShards, b);
    case OpKind::kReduceStatistics:
      return BindReduceStatistics(b);
    case OpKind::kAverageStatistics:
      return BindAverageStatistics(b);
    case OpKind::kGatherAmaxes:
      return BindGatherAmaxes(b);
    case OpKind::kReduceScalars:
      return BindUpdateOp(b);
    case OpKind::kReduceReplicas:
    case OpKind::kReduceUpdateNorms:
    case OpKind::kGatherUpdates:
    case OpKind::kScatterUpdates:
      return BindCall(b);
    default:
      return absl::UnimplementedError(
          absl::StrCat(graph::Name(b.planned.op.kind), " is none of the collectives"));
  }
}

}  // namespace milepost::runtime
