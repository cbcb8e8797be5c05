// The update, and what LAMB and Muon do between the scalars' reduction and it. These work
// on flat groups (plan::FlatGroup), not on values.
#include <algorithm>

#include "common/round_up.h"
#include "engine/ops/contract/sums.h"
#include "engine/ops/op_definition.h"
#include "engine/optim/lamb/lamb_contract.h"
#include "engine/optim/muon/muon_contract.h"

namespace milepost::ops {
namespace {

int64_t LambWorkspace(const WorkspaceContext& c) {
  return kernels::LambWorkspaceBytes(c.group.shard_elements);
}
// Each tensor may cut a chunk.
int64_t GpuLambWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::LambWorkspaceBytes(
      CeilDiv(c.group.shard_elements, kernels::cuda::kChunkElements) + c.group.tensors);
}

// The largest matrix's.
template <typename Scratch>
int64_t MuonWorkspace(const WorkspaceContext& c) {
  int64_t most = 0;
  for (const auto& [rows, cols] : c.group.matrices) {
    most = std::max(most, Scratch({rows, cols, c.group.product_dtype}).bytes);
  }
  return most;
}

}  // namespace

// One group's shard (stage 0: all of it): gradient, master, m, v where the optimizer has it -> all
// but the gradient, and the parameter shard. Offloaded: on the host, of what lies there, for
// kParametersToDevice.
constinit const OpDefinition kOptimizer = {.cost = NoCost};

// LAMB; one group's shard: gradient, master, m, v -> m, v, and of each tensor the sums of squares
// of this rank's part of it and of its update.
constinit const OpDefinition kUpdateNorms = {
    .cost = NoCost, .cpu_workspace = LambWorkspace, .gpu_workspace = GpuLambWorkspace};

// LAMB: those of all groups, all-reduced among the ranks of the shards.
constinit const OpDefinition kReduceUpdateNorms = {.cost = NoCost};

// Muon; one group's shard: gradient, m -> m, and its slice of the update.
constinit const OpDefinition kMuonMomentum = {.cost = NoCost};

// Muon: all-gather of one group's updates, in place.
constinit const OpDefinition kGatherUpdates = {.cost = NoCost};

// Muon: those of one group's matrices that this rank owns, in place; where there are other owners,
// theirs become zero.
constinit const OpDefinition kOrthogonalize = {
    .cost = NoCost,
    .cpu_workspace = MuonWorkspace<kernels::OrthogonalizeScratch>,
    .gpu_workspace = MuonWorkspace<kernels::cuda::OrthogonalizeScratch>,
    .multiplies = true};

// Muon: sum over the owners; each rank needs its shard of it.
constinit const OpDefinition kScatterUpdates = {.cost = NoCost};

}  // namespace milepost::ops
