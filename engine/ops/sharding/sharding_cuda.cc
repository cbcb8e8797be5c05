// On the communication stream each is the call that CollectiveOf tells, and kernels around it on
// the same stream.
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cuda/collectives.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BindCall;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CudaBinding;
using runtime::DeviceCall;
using runtime::DeviceCallOf;
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
  float* shard = SummedShard(b);
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
          mine = gradient + ShardBegin(b), rounded = ShardGradient<bf16>(b),
          count = group.shard_elements, stream = b.stream()](const StepContext&) {
    if (chunk_count > 0) {
      MP_RETURN_IF_ERROR(kernels::cuda::ZeroRanges(chunks, chunk_count, gradient, stream));
    }
    return kernels::cuda::Cast(mine, count, rounded, stream);
  };
}

// Every rank's shard, the padding in it too, into a buffer of whole parameters. T: what is copied
// at a time; of bytes several.
template <typename T>
absl::StatusOr<BoundOp> GatherFromShards(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  const plan::FlatGroup& group = GroupOf(b);
  const int64_t each = sizeof(T) / ByteSize(group.parameter_dtype);
  T* whole = BufferOf<T>(b, b.program.places[b.OutputId(0)].buffer);
  return [call, mine = whole + ShardBegin(b) / each, shard = BufferOf<T>(b, group.parameter_buffer),
          count = group.shard_elements / each](const StepContext&) {
    MP_RETURN_IF_ERROR(kernels::cuda::Cast(shard, count, mine, call.stream));
    return call.Enqueue();
  };
}

absl::StatusOr<BoundOp> BindGatherParameters(const CudaBinding& b) {
  if (b.planned.op.outputs.empty()) return BindCall(b);
  if (GroupOf(b).Packed()) return GatherFromShards<float>(b);
  return MP_BIND_BY_DTYPE(GatherFromShards, b);
}

template <typename T>
absl::StatusOr<BoundOp> GradNormOf(const CudaBinding& b) {
  const int64_t count = GroupOf(b).padded_elements / GroupOf(b).Ranks(b.plan.options);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(kernels::SumSquaresWorkspaceBytes(count)));
  const int64_t slice = GroupOf(b).SliceOf(b.plan.options, b.rank);  // within the shard
  return [gradient = ShardGradient<T>(b) + count * slice, count,
          slot = Scalars(b) + b.plan.ReducedScalars() + b.attributes().group,
          workspace = b.Workspace(), stream = b.stream()](const StepContext&) {
    return cuda::SumSquares(gradient, count, slot, workspace, stream);
  };
}

absl::StatusOr<BoundOp> BindGradNorm(const CudaBinding& b) {
  return b.plan.options.RoundsGradients() ? GradNormOf<bf16>(b) : GradNormOf<float>(b);
}

// The ranks' sum and the decision follow on the stream of the sums: what waits for the scalars
// waits for the decision too.
absl::StatusOr<BoundOp> BindReduceScalars(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  std::vector<int32_t> slots;
  for (const size_t group : NormsOfRank(b)) {
    slots.push_back(b.plan.ReducedScalars() + static_cast<int32_t>(group));
  }
  MP_ASSIGN_OR_RETURN(const int32_t* table, b.services.tables->Upload(slots));
  // Two floats for each f64.
  const int64_t others = HasLosses(b) ? 0 : 2 * (b.plan.ReducedScalars() - plan::LossScalar(0));
  return [call, table, count = static_cast<int64_t>(slots.size()), scalars = Scalars(b), others,
          control = b.control(), update = b.memory.update](const StepContext&) {
    double* norm = scalars + plan::kNormScalar;
    if (others > 0) {
      auto* losses = reinterpret_cast<float*>(scalars + plan::LossScalar(0));
      MP_RETURN_IF_ERROR(kernels::cuda::Fill(losses, others, 0, call.stream));
    }
    MP_RETURN_IF_ERROR(cuda::SumScalars(scalars, table, count, norm, &control->stop,
                                        scalars + plan::kStopScalar, call.stream));
    MP_RETURN_IF_ERROR(call.Enqueue());
    return cuda::DecideUpdate(norm, &control->clip, update, call.stream);
  };
}

}  // namespace

constinit const CudaOp kReduceGradients = {.bind = BindReduceGradients};
constinit const CudaOp kRoundGradients = {.bind = BindRoundGradients};
constinit const CudaOp kGradNorm = {.bind = BindGradNorm};
constinit const CudaOp kReduceScalars = {.bind = BindReduceScalars};
constinit const CudaOp kGatherParameters = {.bind = BindGatherParameters};
constinit const CudaOp kReduceReplicas = {.bind = BindCall};
constinit const CudaOp kReduceShared = {.bind = BindCall};
constinit const CudaOp kReduceParts = {.bind = BindCall};

}  // namespace milepost::ops::gpu
