// Verification, part 3: what ops do to flat groups, from complete gradients to updated parameters,
// and to the step's scalars, statistics and scalings.
#include <algorithm>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "engine/plan/verification/step_simulation.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;

bool WorksOnGroup(OpKind kind) {
  switch (kind) {
    case OpKind::kReduceGradients:
    case OpKind::kCompressGradients:
    case OpKind::kReduceLeftFactors:
    case OpKind::kProjectGradients:
    case OpKind::kReduceRightFactors:
    case OpKind::kExpandGradients:
    case OpKind::kForgetErrors:
    case OpKind::kReduceReplicas:
    case OpKind::kReduceShared:
    case OpKind::kReduceParts:
    case OpKind::kRoundGradients:
    case OpKind::kGradNorm:
    case OpKind::kOptimizer:
    case OpKind::kAverageParameters:
    case OpKind::kExchangeAverages:
    case OpKind::kGatherParameters:
    case OpKind::kUpdateNorms:
    case OpKind::kMuonMomentum:
    case OpKind::kGatherUpdates:
    case OpKind::kOrthogonalize:
    case OpKind::kScatterUpdates:
    case OpKind::kGradientsToHost:
    case OpKind::kParametersToDevice:
    case OpKind::kReadState:
    case OpKind::kWriteState:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status StepSimulation::GroupOp() {
  const OpKind kind = Op().kind;
  if (kind == OpKind::kReduceScalars) return ReduceScalars();
  if (kind == OpKind::kScalarsToHost) return ScalarsToHost();
  if (kind == OpKind::kReduceUpdateNorms) return ReduceUpdateNorms();
  if (kind == OpKind::kReduceStatistics) return ReduceStatistics();
  if (kind == OpKind::kAverageStatistics) ++averages_;
  if (kind == OpKind::kGatherAmaxes) return GatherAmaxes();
  if (kind == OpKind::kUpdateScalings) return UpdateScalings();
  if (!WorksOnGroup(kind)) return absl::OkStatus();
  const int32_t index = Op().attributes.group;
  const bool gather = kind == OpKind::kGatherParameters && !Op().outputs.empty();
  if ((!training_ && !gather) || index < 0 || index >= static_cast<int32_t>(groups_.size())) {
    return Violation("has no flat group to work on");
  }
  Group& group = groups_[index];
  switch (kind) {
    case OpKind::kReduceGradients:
      return Reduce(index);
    case OpKind::kCompressGradients:
    case OpKind::kReduceLeftFactors:
    case OpKind::kProjectGradients:
    case OpKind::kReduceRightFactors:
    case OpKind::kExpandGradients:
      return Factor(index);
    case OpKind::kForgetErrors:
      return ForgetErrors(index);
    case OpKind::kReduceShared:
      return AddShared(index);
    case OpKind::kReduceParts:
      return SumParts(index);
    case OpKind::kReduceReplicas:
      // Complete within the shard's ranks, and not yet beyond them.
      MP_RETURN_IF_ERROR(CheckSummed(index, 0));
      ++group.across;
      return absl::OkStatus();
    case OpKind::kRoundGradients:
      return Round(index);
    case OpKind::kGradNorm:
      MP_RETURN_IF_ERROR(CheckReduced(index));
      MP_RETURN_IF_ERROR(CheckParts(index));
      ++group.norms;
      return absl::OkStatus();
    case OpKind::kOptimizer:
      return UpdateGroup(index);
    case OpKind::kAverageParameters:
      return Average(index);
    case OpKind::kExchangeAverages:
      return Violation(plan_.groups[index].name, " is exchanged within a step");
    case OpKind::kGradientsToHost:
      return GradientToHost(index);
    case OpKind::kParametersToDevice:
      return ParametersToDevice(index);
    case OpKind::kReadState:
      return ReadState(index);
    case OpKind::kWriteState:
      return WriteState(index);
    case OpKind::kGatherParameters:
      return Gather(index);
    default:
      return Prepare(index);
  }
}

// Every gradient of the group holds all micro-steps of this step or, before its reduction into a
// shard, this micro-step.
absl::Status StepSimulation::CheckComplete(int group) const {
  const int last = plan_.options.GradientsPass() ? micro_step_ : micro_steps_ - 1;
  for (const GroupParameter& p : plan_.groups[group].parameters) {
    const ValueId gradient = program_.graph.parameters[p.parameter].gradient;
    if (gradient == kNoValue || !valid_[gradient] || written_in_[gradient] != last) {
      return Violation("the gradient of ", p.name, " is not complete");
    }
  }
  return absl::OkStatus();
}

// What another stage has made of the gradient.
absl::Status StepSimulation::AddShared(int index) {
  MP_RETURN_IF_ERROR(CheckComplete(index));
  Group& group = groups_[index];
  if (group.reductions > 0 || group.rounds > 0) {
    return Violation(plan_.groups[index].name, " is reduced before other stages have added");
  }
  ++group.additions;
  return absl::OkStatus();
}

// What tensor ranks have made of the gradient, before anything else is done with it.
absl::Status StepSimulation::SumParts(int index) {
  MP_RETURN_IF_ERROR(CheckComplete(index));
  Group& group = groups_[index];
  const std::string& name = plan_.groups[index].name;
  if (!plan_.groups[index].partial) return Violation(name, " has no parts to be summed");
  const bool each = plan_.options.GradientsPass();
  const int earlier = each ? micro_step_ : 0;
  if (group.parts != earlier || group.reductions > earlier || group.rounds > 0 || group.norms > 0) {
    return Violation(name, " is summed over tensor ranks again, or after it was reduced");
  }
  ++group.parts;
  return absl::OkStatus();
}

// In each micro-step whose gradient passes, else once.
absl::Status StepSimulation::CheckParts(int index) const {
  if (!plan_.groups[index].partial) return absl::OkStatus();
  const int needed = plan_.options.GradientsPass() ? std::min(micro_step_ + 1, micro_steps_) : 1;
  if (groups_[index].parts == needed) return absl::OkStatus();
  return Violation(plan_.groups[index].name, " is not summed over tensor ranks");
}

// The micro-step's gradient goes into the shard, which thereby holds all micro-steps so far. The
// first reduction assigns; the later ones find there what the earlier ones left.
absl::Status StepSimulation::Reduce(int index) {
  MP_RETURN_IF_ERROR(CheckComplete(index));
  MP_RETURN_IF_ERROR(CheckParts(index));
  Group& group = groups_[index];
  const std::string& name = plan_.groups[index].name;
  if (plan_.groups[index].Compressed()) return Violation(name, " is to travel as factors");
  if (!plan_.options.ShardsGradients() || plan_.options.RoundsGradients()) {
    ++group.reductions;
    return absl::OkStatus();
  }
  if (program_.ops[index_].when != When::kEveryMicroStep || group.reductions != micro_step_) {
    return Violation(name, " is not reduced once in every micro-step");
  }
  const ValueId shard = shards_begin_ + index;
  if (micro_step_ == 0) {
    HoldBytes(shard, GroupBytes(plan_.groups[index].gradient_shard_buffer));
  } else if (!valid_[shard]) {
    return Violation("the gradient shard of ", name, " was lost between micro-steps");
  }
  ++group.reductions;
  LetGo(index);
  return absl::OkStatus();
}

// What the reduction of a group consists of whose gradient travels as factors, in this order.
std::vector<OpKind> StepSimulation::FactorOps() const {
  if (plan_.options.world == 1) {
    return {OpKind::kCompressGradients, OpKind::kProjectGradients, OpKind::kExpandGradients};
  }
  return {OpKind::kCompressGradients, OpKind::kReduceLeftFactors, OpKind::kProjectGradients,
          OpKind::kReduceRightFactors, OpKind::kExpandGradients};
}

// One of those, once a step. The first finds the gradient complete; the others find the factors.
absl::Status StepSimulation::Factor(int index) {
  MP_RETURN_IF_ERROR(CheckComplete(index));
  const FlatGroup& flat = plan_.groups[index];
  Group& group = groups_[index];
  const std::vector<OpKind> ops = FactorOps();
  if (!flat.Compressed() || group.factored >= ops.size() || ops[group.factored] != Op().kind) {
    return Violation("is not what the factors of ", flat.name, " need next");
  }
  if (group.factored == 0) {
    HoldBytes(LeftFactors(index), GroupBytes(flat.left_buffer));
    HoldBytes(RightFactors(index), GroupBytes(flat.right_buffer));
  } else if (!valid_[LeftFactors(index)] || !valid_[RightFactors(index)]) {
    return Violation("the factors of ", flat.name, " are lost: their bytes are reused");
  }
  ++group.factored;
  if (group.factored == ops.size()) ++group.reductions;
  return absl::OkStatus();
}

absl::Status StepSimulation::ForgetErrors(int index) {
  const std::string& name = plan_.groups[index].name;
  if (!plan_.groups[index].Compressed()) return Violation(name, " has no errors");
  if (scalar_reductions_ != 1) return Violation("whether the step updates is not known");
  ++groups_[index].forgets;
  return absl::OkStatus();
}

// Of a whole gradient in fp32: what counts lies in the group's shard.
void StepSimulation::LetGo(int index) {
  for (const GroupParameter& p : plan_.groups[index].parameters) {
    valid_[program_.graph.parameters[p.parameter].gradient] = false;
  }
}

// The reduced gradient into bf16, once: the step has one micro-step.
absl::Status StepSimulation::Round(int index) {
  if (!plan_.options.RoundsGradients() || groups_[index].rounds > 0) {
    return Violation(plan_.groups[index].name, " is rounded again, or is kept in fp32");
  }
  MP_RETURN_IF_ERROR(CheckSummed(index, AcrossReplicas()));
  MP_RETURN_IF_ERROR(CheckParts(index));
  HoldBytes(shards_begin_ + index, GroupBytes(plan_.groups[index].gradient_shard_buffer));
  ++groups_[index].rounds;
  LetGo(index);
  return absl::OkStatus();
}

// The group's gradient of the whole step is there, reduced; so often among replicas. It may have
// to be rounded yet.
absl::Status StepSimulation::CheckSummed(int index, int across) const {
  const Group& group = groups_[index];
  if (group.reductions != Reductions(index) || group.across != across) {
    return Violation(plan_.groups[index].name, " is not reduced");
  }
  const bool whole = !plan_.options.ShardsGradients() || plan_.options.RoundsGradients();
  return whole ? CheckComplete(index) : CheckShard(index);
}

// As the update reads it.
absl::Status StepSimulation::CheckReduced(int index) const {
  if (!plan_.options.RoundsGradients()) return CheckSummed(index, AcrossReplicas());
  return CheckShard(index);
}

absl::Status StepSimulation::CheckShard(int index) const {
  if (valid_[shards_begin_ + index]) return absl::OkStatus();
  return Violation("the gradient shard of ", plan_.groups[index].name,
                   " is not written, or its bytes are reused");
}

// Into values of the program (before use), or in place (after the update).
absl::Status StepSimulation::Gather(int index) {
  Group& group = groups_[index];
  const std::string& name = plan_.groups[index].name;
  if (!Op().outputs.empty()) {
    if (!plan_.groups[index].ShardsParameters(plan_.options) ||
        program_.ops[index_].when != When::kEveryMicroStep || group.updates > 0) {
      return Violation(name, " is gathered for use, but not sharded or already updated");
    }
    return absl::OkStatus();
  }
  if (plan_.options.ShardsParameters()) return Violation(name, " has no buffer to be gathered in");
  if (group.updates != 1 || group.returns != Returns(index)) {
    return Violation(name, " is gathered before its update");
  }
  ++group.gathers;
  return absl::OkStatus();
}

// What must come between the scalars' reduction and the group's update, in this order.
std::vector<OpKind> StepSimulation::Preparations(int index) const {
  const Optimizer optimizer = plan_.groups[index].optimizer;
  if (optimizer == Optimizer::kLamb) return {OpKind::kUpdateNorms};
  if (optimizer != Optimizer::kMuon) return {};
  std::vector<OpKind> kinds = {OpKind::kMuonMomentum};
  if (plan_.options.Shards() > 1) kinds.push_back(OpKind::kGatherUpdates);
  kinds.push_back(OpKind::kOrthogonalize);
  if (plan_.options.MatrixOwners() > 1) kinds.push_back(OpKind::kScatterUpdates);
  return kinds;
}

// One of those. The first finds the gradient and makes the update (or the norms), which the
// others find.
absl::Status StepSimulation::Prepare(int index) {
  Group& group = groups_[index];
  const std::string& name = plan_.groups[index].name;
  const std::vector<OpKind> kinds = Preparations(index);
  if (plan_.groups[index].frozen || group.prepared >= kinds.size() ||
      kinds[group.prepared] != Op().kind) {
    return Violation("is not what the update of ", name, " needs next");
  }
  if (scalar_reductions_ != 1) return Violation(name, ": the scalars are not reduced");
  if (norm_reductions_ > 0) return Violation(name, ": the norms of updates are already reduced");
  const bool lamb = Op().kind == OpKind::kUpdateNorms;
  const ValueId made = lamb ? Norms() : Update(index);
  if (group.prepared == 0) {
    MP_RETURN_IF_ERROR(CheckReduced(index));
    if (!lamb || !valid_[made]) {
      HoldBytes(made, GroupBytes(lamb ? plan_.update_norms : plan_.groups[index].update_buffer));
    }
  } else if (!valid_[made]) {
    return Violation("the update of ", name, " is not written, or its bytes are reused");
  }
  ++group.prepared;
  return absl::OkStatus();
}

// All is there that kOptimizer reads.
absl::Status StepSimulation::CheckPrepared(int index) const {
  const std::string& name = plan_.groups[index].name;
  if (groups_[index].prepared != Preparations(index).size()) {
    return Violation("the update of ", name, " is not prepared");
  }
  const Optimizer optimizer = plan_.groups[index].optimizer;
  if (optimizer == Optimizer::kLamb && norm_reductions_ != NormReductions()) {
    return Violation(name, ": the norms of updates are not reduced");
  }
  const bool kept = optimizer == Optimizer::kLamb   ? valid_[Norms()]
                    : optimizer == Optimizer::kMuon ? valid_[Update(index)]
                                                    : true;
  if (!kept) return Violation("what the update of ", name, " needs is gone");
  // The gradient itself has done its part.
  if (!Preparations(index).empty()) return absl::OkStatus();
  if (plan_.groups[index].Offloaded()) return CheckOnHost(index);
  return CheckReduced(index);
}

// By the optimizer; offloaded, what it leaves for the device takes the place of another group's.
absl::Status StepSimulation::UpdateGroup(int index) {
  const FlatGroup& group = plan_.groups[index];
  MP_RETURN_IF_ERROR(CheckPrepared(index));
  if (scalar_reductions_ != 1) return Violation(group.name, ": the scalars are not reduced");
  ++groups_[index].updates;
  if (group.host_parameter_buffer != kNoBuffer) {
    HoldBytes(HostParameters(index), GroupBytes(group.host_parameter_buffer));
  }
  return absl::OkStatus();
}

absl::Status StepSimulation::Average(int index) {
  Group& group = groups_[index];
  if (group.updates != 1) return Violation(plan_.groups[index].name, " is not updated yet");
  ++group.averages;
  return absl::OkStatus();
}

absl::Status StepSimulation::ReduceUpdateNorms() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const bool lamb = plan_.groups[i].optimizer == Optimizer::kLamb && !plan_.groups[i].frozen;
    if (lamb && groups_[i].prepared != 1) {
      return Violation("the norms of ", plan_.groups[i].name, " are not known");
    }
  }
  if (plan_.update_norms == kNoBuffer || !valid_[Norms()]) {
    return Violation("there are no norms of updates, or their bytes are reused");
  }
  ++norm_reductions_;
  return absl::OkStatus();
}

absl::Status StepSimulation::ReduceScalars() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].norms != (plan_.groups[i].frozen ? 0 : 1)) {
      return Violation("the norm of ", plan_.groups[i].name, " is not known");
    }
  }
  for (const graph::LossHead& head : program_.graph.losses) {
    if (written_in_[head.sums] == micro_steps_ - 1 || !plan_.options.IsLastStage()) continue;
    return Violation("the loss of ", head.name, " is not complete");
  }
  ++scalar_reductions_;
  return absl::OkStatus();
}

// What it reduces is a rank's own.
absl::Status StepSimulation::ReduceStatistics() {
  const ValueId sums = Op().inputs[0];
  for (size_t i = 0; i < index_; ++i) {
    const graph::Op& earlier = program_.ops[i].op;
    if (earlier.kind != OpKind::kReduceStatistics) continue;
    if (earlier.inputs[0] == sums || earlier.outputs[0].value == sums) {
      return Violation(ValueOf(sums).name, " is reduced twice");
    }
  }
  return absl::OkStatus();
}

// Every tensor's are complete; what is gathered is there until the scalings are made of it.
absl::Status StepSimulation::GatherAmaxes() {
  for (const graph::Scaling& scaling : program_.graph.scalings) {
    if (valid_[scaling.amax] && written_in_[scaling.amax] == micro_steps_ - 1) continue;
    return Violation(ValueOf(scaling.amax).name, " is not complete");
  }
  HoldBytes(Amaxes(), GroupBytes(plan_.gathered_amaxes));
  ++amax_gathers_;
  return absl::OkStatus();
}

absl::Status StepSimulation::UpdateScalings() {
  if (amax_gathers_ != 1 || !valid_[Amaxes()]) {
    return Violation("the largest magnitudes are not gathered, or their bytes are reused");
  }
  if (scalar_reductions_ != 1) return Violation("whether the step updates is not known");
  ++scaling_updates_;
  return absl::OkStatus();
}

}  // namespace milepost::plan
