#include <vector>

#include "common/status_macros.h"
#include "engine/optim/lamb/lamb_cuda_kernel.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::optim::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::ChunksOf;
using runtime::CudaBinding;
using runtime::GroupOf;
using runtime::NormsOf;
using runtime::SetParameters;
using runtime::StartUpdate;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> LambOf(const CudaBinding& b) {
  using Update = cuda::FlatUpdate<T>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.states[0] = BufferOf<float>(b, GroupOf(b).state_buffers[0]);
  update.states[1] = BufferOf<float>(b, GroupOf(b).state_buffers[1]);
  return [update, norms = NormsOf(b), stream = b.stream()](const StepContext&) {
    return cuda::LambApply(update, norms, stream);
  };
}

// Vectors take AdamW's step.
cuda::SegmentFactors LambFactors(const plan::FlatGroup&, const runtime::Segment& segment,
                                 const StepContext& c) {
  return {.rate = segment.LearningRate(c),
          .decay = segment.WeightDecay(c),
          .norms = segment.decay ? segment.tensor : -1};
}

}  // namespace

constinit const CudaOptimizer kLamb = {.bind = MP_BY_DTYPE(LambOf), .factors = LambFactors};

}  // namespace milepost::optim::gpu

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BindCall;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::Chunks;
using runtime::ChunksOf;
using runtime::CudaBinding;
using runtime::GroupOf;
using runtime::NormsOf;
using runtime::ShardGradient;
using runtime::ShardMaster;
using runtime::StartUpdate;
using runtime::StepContext;

absl::StatusOr<BoundOp> BindUpdateNorms(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const Chunks chunks = ChunksOf(b);
  MP_ASSIGN_OR_RETURN(cuda::FlatUpdate<float> update,
                      StartUpdate<cuda::FlatUpdate<float>>(b, chunks));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::LambWorkspaceBytes(update.chunk_count)));
  update.p = ShardMaster(b);
  update.states[0] = BufferOf<float>(b, group.state_buffers[0]);
  update.states[1] = BufferOf<float>(b, group.state_buffers[1]);
  update.g = ShardGradient(b);
  // Of each tensor's chunks; of one that has no part in the shard none, and its sums are zeros.
  std::vector<cuda::FlatRange> ranges(group.parameters.size());
  for (size_t i = 0; i < chunks.chunks.size(); ++i) {
    cuda::FlatRange& range = ranges[chunks.segments[chunks.chunks[i].segment].tensor];
    if (range.end == 0) range.begin = static_cast<int64_t>(i);
    range.end = static_cast<int64_t>(i) + 1;
  }
  MP_ASSIGN_OR_RETURN(const cuda::FlatRange* table, b.services.tables->Upload(ranges));
  return [update, table, tensors = static_cast<int64_t>(ranges.size()), norms = NormsOf(b),
          workspace = b.Workspace(), stream = b.stream()](const StepContext&) {
    return cuda::LambMoments(update, table, tensors, norms, workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kUpdateNorms = {.bind = BindUpdateNorms};
constinit const CudaOp kReduceUpdateNorms = {.bind = BindCall};

}  // namespace milepost::ops::gpu
