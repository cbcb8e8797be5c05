// Verification, part 3: runs a step in program order over symbolic bytes. What each byte holds is
// known at every op, so a read of anything else is found; so are gradients that are lost, reduced
// early or twice, and groups left out of the update. Program order stands for every schedule that
// the streams allow, because part 4 shows that conflicting accesses are ordered as in the program.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "common/status_macros.h"
#include "engine/plan/accesses.h"
#include "engine/plan/verification/step_simulation.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;
using graph::ValueKind;
using graph::WriteMode;

}  // namespace

StepSimulation::StepSimulation(const StepPlan& plan, const Program& program, int micro_steps)
    : plan_(plan),
      program_(program),
      training_(&program == &plan.train),
      micro_steps_(micro_steps),
      shards_begin_(static_cast<ValueId>(program.graph.values.size())),
      valid_(program.graph.values.size() + (6 + kMostStates) * plan.groups.size() + 3, false),
      written_in_(program.graph.values.size(), kNever),
      group_of_(program.graph.values.size(), -1),
      groups_(plan.groups.size()) {
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    for (const GroupParameter& p : plan.groups[group].parameters) {
      const graph::Parameter& parameter = program.graph.parameters[p.parameter];
      for (ValueId id : {parameter.value, parameter.gradient}) {
        if (id != kNoValue) group_of_[id] = static_cast<int>(group);
      }
    }
  }
}

absl::Status StepSimulation::Run() {
  for (size_t id = 0; id < program_.graph.values.size(); ++id) {
    const ValueKind kind = program_.graph.values[id].kind;
    const int group = group_of_[id];
    const bool gathered = group >= 0 && plan_.groups[group].ShardsParameters(plan_.options);
    const bool whole = kind == ValueKind::kParameter && !gathered;
    const bool kept =
        kind == ValueKind::kStatistic || kind == ValueKind::kScaling || kind == ValueKind::kCache;
    const bool elsewhere = program_.places[id].buffer == kNoBuffer;  // of another stage or rank
    if ((kind == ValueKind::kInput || kept || whole) && !elsewhere) {
      Hold(static_cast<ValueId>(id));
    }
  }
  for (micro_step_ = 0; micro_step_ < micro_steps_; ++micro_step_) {
    ForgetTransients();
    MP_RETURN_IF_ERROR(RunOps(When::kEveryMicroStep, micro_step_ == micro_steps_ - 1));
  }
  MP_RETURN_IF_ERROR(RunOps(When::kUpdate, false));
  return CheckEnd();
}

absl::Status StepSimulation::RunOps(When when, bool last_micro_step) {
  for (index_ = 0; index_ < program_.ops.size(); ++index_) {
    const When own = program_.ops[index_].when;
    if (own != when && !(last_micro_step && own == When::kLastMicroStep)) continue;
    MP_RETURN_IF_ERROR(RunOp());
  }
  return absl::OkStatus();
}

absl::Status StepSimulation::RunOp() {
  for (ValueId input : Op().inputs) {
    if (input != kNoValue) MP_RETURN_IF_ERROR(Read(input));
  }
  const PlannedOp& planned = program_.ops[index_];
  if (planned.workspace != kNoBuffer) {
    const int64_t begin = plan_.AddressOf(planned.workspace);
    Evict(begin, begin + planned.workspace_bytes);
  }
  for (const graph::Output& output : Op().outputs) {
    if (output.value != kNoValue) MP_RETURN_IF_ERROR(Write(output));
  }
  return GroupOp();
}

absl::Status StepSimulation::Read(ValueId id) {
  const graph::Value& value = ValueOf(id);
  if (!valid_[id]) {
    return Violation("reads ", value.name, " before it is written or after its bytes are reused");
  }
  if (value.kind == ValueKind::kParameter && groups_[group_of_[id]].updates > 0) {
    return Violation("reads ", value.name, " after its update began");
  }
  return absl::OkStatus();
}

absl::Status StepSimulation::Write(const graph::Output& output) {
  const graph::Value& value = ValueOf(output.value);
  switch (value.kind) {
    case ValueKind::kActivation:
      if (output.mode != WriteMode::kAssign) {
        return Violation("accumulates into the activation ", value.name);
      }
      Hold(output.value);
      return absl::OkStatus();
    case ValueKind::kDiscarded:
      Evict(output.value);
      return absl::OkStatus();
    case ValueKind::kParameterGradient:
    case ValueKind::kStepAccumulator:
    case ValueKind::kAmax:
      return Accumulate(output);
    case ValueKind::kStatistic:
      return MoveInPlace(output, training_);
    case ValueKind::kScaling:
      return MoveInPlace(output, training_ && Op().kind == OpKind::kQuantize);
    case ValueKind::kCache:
      return MoveInPlace(output, !training_);
    case ValueKind::kInput:
    case ValueKind::kParameter:
      break;
  }
  return Violation("writes ", value.name, ", which ops may only read");
}

// Once in every micro-step, in place: statistics in training and caches where text is generated,
// both in the forward; scalings.
absl::Status StepSimulation::MoveInPlace(const graph::Output& output, bool allowed) {
  const graph::Value& value = ValueOf(output.value);
  const bool scaling = value.kind == ValueKind::kScaling;
  allowed &= scaling || Op().phase == graph::Phase::kForward;
  if (!allowed || output.mode != WriteMode::kAccumulate || !valid_[output.value] ||
      written_in_[output.value] == micro_step_) {
    return Violation("writes ", value.name,
                     scaling ? " not once in every micro-step, where it is made"
                             : " not once in the forward of every micro-step");
  }
  written_in_[output.value] = micro_step_;
  return absl::OkStatus();
}

absl::Status StepSimulation::Accumulate(const graph::Output& output) {
  const graph::Value& value = ValueOf(output.value);
  const bool started = valid_[output.value];
  const bool each = EveryMicroStep(value);
  if (output.mode == WriteMode::kAssign && (!each || started)) {
    return Violation("assigns ", value.name, ": what was added before would be lost");
  }
  if (output.mode == WriteMode::kAccumulate && !started) {
    return Violation("adds to ", value.name, " before it is started in this step");
  }
  if (output.mode == WriteMode::kAccumulateInStep && (each || (micro_step_ == 0) == started)) {
    return Violation(started ? "starts again " : "does not start ", value.name);
  }
  if (value.kind == ValueKind::kParameterGradient) {
    const Group& group = groups_[group_of_[output.value]];
    if (std::max(group.reductions, group.rounds) > (each ? micro_step_ : 0)) {
      return Violation("writes ", value.name, " after it was reduced or rounded");
    }
  }
  if (!started) Hold(output.value);
  written_in_[output.value] = micro_step_;
  return absl::OkStatus();
}

void StepSimulation::HoldBytes(ValueId id, const Access& access) {
  const int64_t base = plan_.AddressOf(access.buffer);
  Evict(base + access.begin, base + access.end);
  held_[base + access.begin] = {base + access.end, id};
  valid_[id] = true;
}

// What lay where `id` lies is gone.
void StepSimulation::Evict(ValueId id) {
  const Access access = ValueAccess(program_, id, true);
  const int64_t base = plan_.AddressOf(access.buffer);
  Evict(base + access.begin, base + access.end);
}

void StepSimulation::Evict(int64_t begin, int64_t end) {
  auto it = held_.lower_bound(begin);
  if (it != held_.begin() && std::prev(it)->second.end > begin) --it;
  while (it != held_.end() && it->first < end) {
    valid_[it->second.value] = false;
    it = held_.erase(it);
  }
}

// What does not outlive a micro-step.
void StepSimulation::ForgetTransients() {
  for (auto it = held_.begin(); it != held_.end();) {
    const ValueId id = it->second.value;
    const bool transient = id < shards_begin_ && (ValueOf(id).kind == ValueKind::kActivation ||
                                                  EveryMicroStep(ValueOf(id)));
    if (transient) valid_[id] = false;
    it = transient ? held_.erase(it) : std::next(it);
  }
}

absl::Status VerifyValues(const StepPlan& plan, const Program& program) {
  if (program.ops.empty()) return absl::OkStatus();
  for (int micro_steps : UnrolledMicroSteps(plan, program)) {
    MP_RETURN_IF_ERROR(StepSimulation(plan, program, micro_steps).Run());
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
