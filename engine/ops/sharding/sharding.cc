// What the ZeRO pass adds (Rajbhandari et al. 2020). These work on flat groups
// (plan::FlatGroup), not on values.
#include "engine/ops/contract/sums.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

int64_t NormWorkspace(const WorkspaceContext& c) {
  return kernels::SumSquaresWorkspaceBytes(c.group.slice_elements);
}
// What a sum over ranks sends, rounded.
int64_t GradientSumWorkspace(const WorkspaceContext& c) {
  return c.group.bf16_sums ? c.group.padded_elements * ByteSize(DType::kBf16) : 0;
}
int64_t ReplicaSumWorkspace(const WorkspaceContext& c) {
  return c.group.bf16_sums ? c.group.shard_elements * ByteSize(DType::kBf16) : 0;
}

}  // namespace

// All-reduce (stage 0) or reduce-scatter (stage 1) of one group's gradient; from stage 2 on
// reduce-scatter of a micro-step's, added to a shard.
constinit const OpDefinition kReduceGradients = {.cost = NoCost,
                                                 .gpu_workspace = GradientSumWorkspace};

// This rank's shard (stage 0: all) of one group's reduced gradient, in bf16.
constinit const OpDefinition kRoundGradients = {.cost = NoCost};

// Sum of squares of this rank's 1/world slice of one group's reduced gradient (at every stage) ->
// the group's f64 slot of the scalars.
constinit const OpDefinition kGradNorm = {
    .cost = NoCost, .cpu_workspace = NormWorkspace, .gpu_workspace = NormWorkspace};

// Sums the groups' norms in group order into scalar 0; then, where world > 1, all-reduce (sum) of
// the step's scalars: norm, loss, stop flag.
constinit const OpDefinition kReduceScalars = {.cost = NoCost};

// All-gather of one group's parameters: in place, after the update (stages 1 and 2), or (stage 3)
// -> every parameter of the group, gathered.
constinit const OpDefinition kGatherParameters = {.cost = NoCost};

// Pipeline stages: all-reduce of one group's gradient among the stages that have its parameters.
constinit const OpDefinition kReduceShared = {.cost = NoCost};

// Tensor ranks: all-reduce of one group's gradient, of which each has made a part.
constinit const OpDefinition kReduceParts = {.cost = NoCost};

// Hybrid sharding: all-reduce of one group's reduced gradient shard among the ranks that hold the
// same shard, once a step.
constinit const OpDefinition kReduceReplicas = {.cost = NoCost,
                                                .gpu_workspace = ReplicaSumWorkspace};

}  // namespace milepost::ops
