#include "engine/plan/accesses.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr int64_t kScalarBytes = 8;

void AddBuffer(const StepPlan& plan, BufferId buffer, bool write, std::vector<Access>& accesses) {
  if (buffer == kNoBuffer) return;
  accesses.push_back({buffer, 0, plan.buffers[buffer].bytes, write});
}

void AddScalars(const StepPlan& plan, int64_t first, int64_t count, bool write,
                std::vector<Access>& accesses) {
  accesses.push_back({plan.scalars, first * kScalarBytes, (first + count) * kScalarBytes, write});
}

// Where the step's reduced gradient lies.
BufferId ReducedGradient(const FlatGroup& group) {
  return group.gradient_shard_buffer != kNoBuffer ? group.gradient_shard_buffer
                                                  : group.gradient_buffer;
}

BufferId MasterOf(const FlatGroup& group) {
  return group.master_buffer != kNoBuffer ? group.master_buffer : group.parameter_buffer;
}

// The pairs of the group's tensors.
void AddNorms(const StepPlan& plan, const FlatGroup& group, bool write,
              std::vector<Access>& accesses) {
  constexpr int64_t kPairBytes = 16;
  const auto count = static_cast<int64_t>(group.parameters.size());
  accesses.push_back({plan.update_norms, group.first_norm * kPairBytes,
                      (group.first_norm + count) * kPairBytes, write});
}

// What kOptimizer leaves on the host for the device: the shard's parameters.
void AddHostParameters(const StepPlan& plan, const FlatGroup& group, bool write,
                       std::vector<Access>& accesses) {
  if (group.host_parameter_buffer == kNoBuffer) {
    AddBuffer(plan, group.master_buffer, write, accesses);
    return;
  }
  const int64_t bytes = group.shard_elements * ByteSize(plan.options.compute_dtype);
  accesses.push_back({group.host_parameter_buffer, 0, bytes, write});
}

// Those of a group's optimizer, with their scales.
void AddStates(const StepPlan& plan, const FlatGroup& group, bool write,
               std::vector<Access>& accesses) {
  for (const StateBuffers& buffers : {group.state_buffers, group.scale_buffers}) {
    for (const BufferId state : buffers) AddBuffer(plan, state, write, accesses);
  }
}

void AddHostOptimizer(const StepPlan& plan, const FlatGroup& group, std::vector<Access>& accesses) {
  AddBuffer(plan, plan.host_scalars, false, accesses);
  AddBuffer(plan, group.host_gradient_buffer, false, accesses);
  AddBuffer(plan, group.master_buffer, true, accesses);
  AddStates(plan, group, true, accesses);
  if (group.host_parameter_buffer != kNoBuffer) AddHostParameters(plan, group, true, accesses);
}

// A group's state in its place on the host, as it lies on disk.
void AddDiskStates(const FlatGroup& group, bool write, std::vector<Access>& accesses) {
  for (const GroupState& state : StatesOf(group)) {
    if (state.buffer == kNoBuffer) continue;
    const int64_t items = group.shard_elements / state.elements_per_item;
    accesses.push_back({state.buffer, 0, DiskBytes(items * ByteSize(state.dtype)), write});
  }
}

void AddOptimizer(const StepPlan& plan, const FlatGroup& group, std::vector<Access>& accesses) {
  if (group.Needs() == optim::StepNeeds::kWholeMatrices) {
    AddBuffer(plan, group.update_buffer, false, accesses);
  } else if (group.Needs() == optim::StepNeeds::kTensorNorms) {
    AddNorms(plan, group, false, accesses);
    AddStates(plan, group, false, accesses);
  } else {
    AddBuffer(plan, ReducedGradient(group), false, accesses);
    AddStates(plan, group, true, accesses);
  }
  AddBuffer(plan, group.master_buffer, true, accesses);
  AddBuffer(plan, group.parameter_buffer, true, accesses);
}

void AddGather(const StepPlan& plan, const Program& program, const graph::Op& op,
               const FlatGroup& group, std::vector<Access>& accesses) {
  const bool in_place = op.outputs.empty();
  AddBuffer(plan, group.parameter_buffer, in_place, accesses);
  if (!in_place) AddBuffer(plan, program.places[op.outputs[0].value].buffer, true, accesses);
}

// Ops of the whole step, not of one group. False: the op is none of them.
bool AddStepAccesses(const StepPlan& plan, OpKind kind, std::vector<Access>& accesses) {
  switch (kind) {
    case OpKind::kReduceScalars:
      AddScalars(plan, 0, plan.ReducedScalars() + static_cast<int64_t>(plan.groups.size()), true,
                 accesses);
      return true;
    case OpKind::kReduceUpdateNorms:
      AddBuffer(plan, plan.update_norms, true, accesses);
      return true;
    case OpKind::kGatherAmaxes:
      AddBuffer(plan, plan.amaxes, false, accesses);
      AddBuffer(plan, plan.gathered_amaxes, true, accesses);
      return true;
    case OpKind::kUpdateScalings:
      AddScalars(plan, 0, plan.ReducedScalars(), false, accesses);  // whether the step is skipped
      AddBuffer(plan, plan.gathered_amaxes, false, accesses);
      AddBuffer(plan, plan.scalings, true, accesses);
      return true;
    case OpKind::kAverageStatistics:
      AddBuffer(plan, plan.statistics, true, accesses);
      return true;
    case OpKind::kScalarsToHost:
      AddScalars(plan, 0, plan.ReducedScalars(), false, accesses);
      AddBuffer(plan, plan.host_scalars, true, accesses);
      return true;
    default:
      return false;
  }
}

// Ops on a group's gradients, up to their norm. False: the op is none of them.
bool AddGradientAccesses(const StepPlan& plan, OpKind kind, int32_t index,
                         std::vector<Access>& accesses) {
  const FlatGroup& group = plan.groups[index];
  switch (kind) {
    case OpKind::kReduceGradients:
      AddBuffer(plan, group.gradient_buffer, true, accesses);
      if (plan.options.RoundsGradients()) return true;  // that comes next
      AddBuffer(plan, group.gradient_shard_buffer, true, accesses);
      return true;
    case OpKind::kCompressGradients:
      AddBuffer(plan, group.gradient_buffer, false, accesses);
      AddBuffer(plan, group.error_buffer, true, accesses);
      AddBuffer(plan, group.right_buffer, true, accesses);
      AddBuffer(plan, group.left_buffer, true, accesses);
      return true;
    case OpKind::kReduceLeftFactors:  // or, before the first step that compresses, the gradient
      AddBuffer(plan, group.gradient_buffer, true, accesses);
      AddBuffer(plan, group.left_buffer, true, accesses);
      return true;
    case OpKind::kProjectGradients:
      AddBuffer(plan, group.error_buffer, false, accesses);
      AddBuffer(plan, group.left_buffer, true, accesses);
      AddBuffer(plan, group.right_buffer, true, accesses);
      return true;
    case OpKind::kReduceRightFactors:
      AddBuffer(plan, group.right_buffer, true, accesses);
      return true;
    case OpKind::kExpandGradients:
      AddBuffer(plan, group.left_buffer, false, accesses);
      AddBuffer(plan, group.right_buffer, true, accesses);  // over the ranks
      AddBuffer(plan, group.error_buffer, true, accesses);
      AddBuffer(plan, group.gradient_buffer, true, accesses);
      return true;
    case OpKind::kForgetErrors:  // where the step is skipped
      AddScalars(plan, 0, plan.ReducedScalars(), false, accesses);
      AddBuffer(plan, group.error_buffer, true, accesses);
      if (plan.options.powersgd_warm) AddBuffer(plan, group.right_buffer, true, accesses);
      return true;
    case OpKind::kReduceShared:
    case OpKind::kReduceParts:
      AddBuffer(plan, group.gradient_buffer, true, accesses);
      return true;
    case OpKind::kReduceReplicas:
      AddBuffer(plan,
                plan.options.RoundsGradients() ? group.gradient_buffer : ReducedGradient(group),
                true, accesses);
      return true;
    case OpKind::kRoundGradients:  // its padding becomes zeros first
      AddBuffer(plan, group.gradient_buffer, true, accesses);
      AddBuffer(plan, group.gradient_shard_buffer, true, accesses);
      return true;
    case OpKind::kGradNorm:
      AddBuffer(plan, ReducedGradient(group), false, accesses);
      AddScalars(plan, plan.ReducedScalars() + index, 1, true, accesses);
      return true;
    case OpKind::kGradientsToHost:
      AddBuffer(plan, ReducedGradient(group), false, accesses);
      AddBuffer(plan, group.host_gradient_buffer, true, accesses);
      return true;
    default:
      return false;
  }
}

// Ops that prepare or make the update of a group.
void AddUpdateAccesses(const StepPlan& plan, OpKind kind, const FlatGroup& group,
                       std::vector<Access>& accesses) {
  switch (kind) {
    case OpKind::kUpdateNorms:
      AddScalars(plan, 0, plan.ReducedScalars(), false, accesses);
      AddBuffer(plan, ReducedGradient(group), false, accesses);
      AddBuffer(plan, MasterOf(group), false, accesses);
      AddStates(plan, group, true, accesses);
      AddNorms(plan, group, true, accesses);
      break;
    case OpKind::kMuonMomentum:
      AddScalars(plan, 0, plan.ReducedScalars(), false, accesses);
      AddBuffer(plan, ReducedGradient(group), false, accesses);
      AddStates(plan, group, true, accesses);
      AddBuffer(plan, group.update_buffer, true, accesses);
      break;
    case OpKind::kGatherUpdates:
    case OpKind::kOrthogonalize:
    case OpKind::kScatterUpdates:
      AddBuffer(plan, group.update_buffer, true, accesses);
      break;
    case OpKind::kReadState:
    case OpKind::kWriteState:
      AddDiskStates(group, kind == OpKind::kReadState, accesses);
      break;
    case OpKind::kOptimizer:
      if (group.Offloaded()) {
        AddHostOptimizer(plan, group, accesses);
        break;
      }
      AddScalars(plan, 0, plan.ReducedScalars(), false, accesses);
      AddOptimizer(plan, group, accesses);
      break;
    default:
      break;
  }
}

// Ops on a group's average. False: the op is none of them.
bool AddAverageAccesses(const StepPlan& plan, OpKind kind, const FlatGroup& group,
                        std::vector<Access>& accesses) {
  switch (kind) {
    case OpKind::kAverageParameters:
      AddScalars(plan, 0, plan.ReducedScalars(), false, accesses);  // whether the step is skipped
      AddBuffer(plan, MasterOf(group), false, accesses);
      AddBuffer(plan, group.average_buffer, true, accesses);
      return true;
    case OpKind::kExchangeAverages:
      AddBuffer(plan, group.master_buffer, false, accesses);
      AddBuffer(plan, group.average_buffer, true, accesses);
      AddBuffer(plan, group.parameter_buffer, true, accesses);
      return true;
    default:
      return false;
  }
}

// Ops of outer steps. False: the op is none of them.
bool AddOuterAccesses(const StepPlan& plan, const graph::Op& op, const FlatGroup& group,
                      std::vector<Access>& accesses) {
  switch (op.kind) {
    case OpKind::kKeepAnchors:
      AddBuffer(plan, MasterOf(group), false, accesses);
      AddBuffer(plan, group.anchor_buffer, true, accesses);
      return true;
    case OpKind::kAverageIslands: {
      const BufferId state = StatesOf(group).at(op.attributes.state).buffer;
      AddBuffer(plan, state != kNoBuffer ? state : MasterOf(group), true, accesses);
      return true;
    }
    case OpKind::kOuterUpdate:
      AddBuffer(plan, group.master_buffer, true, accesses);
      AddBuffer(plan, group.parameter_buffer, true, accesses);
      AddBuffer(plan, group.anchor_buffer, true, accesses);
      AddBuffer(plan, group.outer_momentum_buffer, true, accesses);
      AddStates(plan, group, true, accesses);
      return true;
    default:
      return false;
  }
}

// What an op touches besides its operands.
void AddGroupAccesses(const StepPlan& plan, const Program& program, const graph::Op& op,
                      std::vector<Access>& accesses) {
  if (AddStepAccesses(plan, op.kind, accesses)) return;
  const int32_t index = op.attributes.group;
  if (index < 0 || index >= static_cast<int32_t>(plan.groups.size())) return;
  if (AddGradientAccesses(plan, op.kind, index, accesses)) return;
  const FlatGroup& group = plan.groups[index];
  if (AddAverageAccesses(plan, op.kind, group, accesses)) return;
  if (AddOuterAccesses(plan, op, group, accesses)) return;
  if (op.kind == OpKind::kParametersToDevice) {
    AddHostParameters(plan, group, false, accesses);
    AddBuffer(plan, group.parameter_buffer, true, accesses);
  } else if (op.kind == OpKind::kGatherParameters) {
    AddGather(plan, program, op, group, accesses);
  } else {
    AddUpdateAccesses(plan, op.kind, group, accesses);
  }
}

}  // namespace

Access ValueAccess(const Program& program, graph::ValueId value, bool write) {
  const graph::Value& v = program.graph.values[value];
  const Place& place = program.places[value];
  return {place.buffer, place.offset, place.offset + graph::Elements(v.shape) * ByteSize(v.dtype),
          write};
}

std::vector<Access> OpAccesses(const StepPlan& plan, const Program& program,
                               const PlannedOp& planned) {
  std::vector<Access> accesses;
  for (graph::ValueId input : planned.op.inputs) {
    if (input != graph::kNoValue) accesses.push_back(ValueAccess(program, input, false));
  }
  for (const graph::Output& output : planned.op.outputs) {
    if (output.value != graph::kNoValue) {
      accesses.push_back(ValueAccess(program, output.value, true));
    }
  }
  AddGroupAccesses(plan, program, planned.op, accesses);
  if (planned.workspace != kNoBuffer) {
    accesses.push_back({planned.workspace, 0, planned.workspace_bytes, true});
  }
  return accesses;
}

}  // namespace milepost::plan
