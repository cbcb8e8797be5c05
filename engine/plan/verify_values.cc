// Verification, part 3: runs a step in program order over symbolic bytes. What each byte holds is
// known at every op, so a read of anything else is found; so are gradients that are lost, reduced
// early or twice, and groups left out of the update. Program order stands for every schedule that
// the streams allow, because part 4 shows that conflicting accesses are ordered as in the program.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/accesses.h"
#include "engine/plan/verify.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;
using graph::ValueKind;
using graph::WriteMode;

class Simulation {
 public:
  Simulation(const StepPlan& plan, const Program& program, int micro_steps)
      : plan_(plan),
        program_(program),
        training_(&program == &plan.train),
        micro_steps_(micro_steps),
        valid_(program.graph.values.size(), false),
        written_in_(program.graph.values.size(), kNever),
        groups_(plan.groups.size()) {}

  absl::Status Run() {
    for (size_t id = 0; id < program_.graph.values.size(); ++id) {
      const ValueKind kind = program_.graph.values[id].kind;
      if (kind == ValueKind::kInput || kind == ValueKind::kParameter)
        Hold(static_cast<ValueId>(id));
    }
    for (micro_step_ = 0; micro_step_ < micro_steps_; ++micro_step_) {
      ForgetActivations();
      MP_RETURN_IF_ERROR(RunOps(When::kEveryMicroStep, micro_step_ == micro_steps_ - 1));
    }
    MP_RETURN_IF_ERROR(RunOps(When::kUpdate, false));
    return CheckEnd();
  }

 private:
  static constexpr int kNever = -1;  // not yet in this step

  struct Group {
    int reductions = 0;
    int norms = 0;
    int updates = 0;
    int gathers = 0;
  };
  struct Held {
    int64_t end;
    ValueId value;
  };

  template <typename... Parts>
  absl::Status Violation(const Parts&... parts) const {
    return absl::InternalError(absl::StrCat("op ", index_, " (", graph::Name(Op().kind),
                                            "), micro-step ", micro_step_ + 1, " of ", micro_steps_,
                                            ": ", parts...));
  }
  const graph::Op& Op() const { return program_.ops[index_].op; }
  const graph::Value& ValueOf(ValueId id) const { return program_.graph.values[id]; }

  absl::Status RunOps(When when, bool last_micro_step) {
    for (index_ = 0; index_ < program_.ops.size(); ++index_) {
      const When own = program_.ops[index_].when;
      if (own != when && !(last_micro_step && own == When::kLastMicroStep)) continue;
      MP_RETURN_IF_ERROR(RunOp());
    }
    return absl::OkStatus();
  }

  absl::Status RunOp() {
    for (ValueId input : Op().inputs) {
      if (input != kNoValue) MP_RETURN_IF_ERROR(Read(input));
    }
    const PlannedOp& planned = program_.ops[index_];
    if (planned.workspace != kNoBuffer) {
      const int64_t begin = plan_.buffers[planned.workspace].offset;
      Evict(begin, begin + planned.workspace_bytes);
    }
    for (const graph::Output& output : Op().outputs) {
      if (output.value != kNoValue) MP_RETURN_IF_ERROR(Write(output));
    }
    return GroupOp();
  }

  absl::Status Read(ValueId id) {
    const graph::Value& value = ValueOf(id);
    if (!valid_[id]) {
      return Violation("reads ", value.name, " before it is written or after its bytes are reused");
    }
    if (value.kind == ValueKind::kParameter && groups_[value.block].updates > 0) {
      return Violation("reads ", value.name, " after its update began");
    }
    return absl::OkStatus();
  }

  absl::Status Write(const graph::Output& output) {
    const graph::Value& value = ValueOf(output.value);
    switch (value.kind) {
      case ValueKind::kActivation:
        if (output.mode != WriteMode::kAssign) {
          return Violation("accumulates into the activation ", value.name);
        }
        Hold(output.value);
        return absl::OkStatus();
      case ValueKind::kParameterGradient:
      case ValueKind::kStepAccumulator:
        return Accumulate(output);
      case ValueKind::kInput:
      case ValueKind::kParameter:
        break;
    }
    return Violation("writes ", value.name, ", which ops may only read");
  }

  absl::Status Accumulate(const graph::Output& output) {
    const graph::Value& value = ValueOf(output.value);
    const bool started = valid_[output.value];
    if (output.mode == WriteMode::kAssign) {
      return Violation("assigns ", value.name, ": earlier micro-steps would be lost");
    }
    if (output.mode == WriteMode::kAccumulate && !started) {
      return Violation("adds to ", value.name, " before it is started in this step");
    }
    if (output.mode == WriteMode::kAccumulateInStep && (micro_step_ == 0) == started) {
      return Violation(started ? "starts again " : "does not start ", value.name);
    }
    if (value.kind == ValueKind::kParameterGradient && groups_[value.block].reductions > 0) {
      return Violation("writes ", value.name, " after it was reduced");
    }
    if (!started) Hold(output.value);
    written_in_[output.value] = micro_step_;
    return absl::OkStatus();
  }

  // Every gradient of the group holds all micro-steps of this step.
  absl::Status CheckComplete(int group) const {
    for (const GroupParameter& p : plan_.groups[group].parameters) {
      const ValueId gradient = program_.graph.parameters[p.parameter].gradient;
      if (gradient == kNoValue || !valid_[gradient] || written_in_[gradient] != micro_steps_ - 1) {
        return Violation("the gradient of ", p.name, " is not complete");
      }
    }
    return absl::OkStatus();
  }

  absl::Status GroupOp() {
    const OpKind kind = Op().kind;
    if (kind == OpKind::kReduceScalars) return ReduceScalars();
    if (kind != OpKind::kReduceGradients && kind != OpKind::kGradNorm && kind != OpKind::kAdamW &&
        kind != OpKind::kGatherParameters) {
      return absl::OkStatus();
    }
    const int32_t index = Op().attributes.group;
    if (!training_ || index < 0 || index >= static_cast<int32_t>(groups_.size())) {
      return Violation("has no flat group to work on");
    }
    Group& group = groups_[index];
    const std::string& name = plan_.groups[index].name;
    switch (kind) {
      case OpKind::kReduceGradients:
        MP_RETURN_IF_ERROR(CheckComplete(index));
        ++group.reductions;
        return absl::OkStatus();
      case OpKind::kGradNorm:
        MP_RETURN_IF_ERROR(CheckComplete(index));
        if (group.reductions != Reductions()) return Violation(name, " is not reduced");
        ++group.norms;
        return absl::OkStatus();
      case OpKind::kAdamW:
        MP_RETURN_IF_ERROR(CheckComplete(index));
        if (scalar_reductions_ != 1) return Violation(name, ": the scalars are not reduced");
        ++group.updates;
        return absl::OkStatus();
      default:
        if (group.updates != 1) return Violation(name, " is gathered before its update");
        ++group.gathers;
        return absl::OkStatus();
    }
  }

  absl::Status ReduceScalars() {
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].norms != 1) {
        return Violation("the norm of ", plan_.groups[i].name, " is not known");
      }
    }
    const ValueId loss = program_.graph.loss_sum;
    if (loss == kNoValue || written_in_[loss] != micro_steps_ - 1) {
      return Violation("the loss is not complete");
    }
    ++scalar_reductions_;
    return absl::OkStatus();
  }

  int Reductions() const { return plan_.options.world > 1 ? 1 : 0; }

  absl::Status CheckEnd() const {
    const ValueId result =
        program_.graph.loss_sum != kNoValue ? program_.graph.loss_sum : program_.graph.logits;
    if (result == kNoValue || !valid_[result]) {
      return absl::InternalError("the result of the program is not written");
    }
    if (!training_) return absl::OkStatus();
    if (scalar_reductions_ != 1) {
      return absl::InternalError(
          absl::StrCat("the scalars are reduced ", scalar_reductions_, " times"));
    }
    const int gathers = plan_.options.zero_stage == 0 ? 0 : Reductions();
    for (size_t i = 0; i < groups_.size(); ++i) {
      const Group& group = groups_[i];
      if (group.reductions == Reductions() && group.norms == 1 && group.updates == 1 &&
          group.gathers == gathers) {
        continue;
      }
      return absl::InternalError(
          absl::StrCat("group ", plan_.groups[i].name, ": ", group.reductions, " reductions, ",
                       group.norms, " norms, ", group.updates, " updates and ", group.gathers,
                       " gathers; expected ", Reductions(), ", 1, 1 and ", gathers));
    }
    return absl::OkStatus();
  }

  // `id` now owns its bytes; whatever lay there is gone.
  void Hold(ValueId id) {
    const Access access = ValueAccess(program_, id, true);
    const int64_t base = plan_.buffers[access.buffer].offset;
    Evict(base + access.begin, base + access.end);
    held_[base + access.begin] = {base + access.end, id};
    valid_[id] = true;
  }

  void Evict(int64_t begin, int64_t end) {
    auto it = held_.lower_bound(begin);
    if (it != held_.begin() && std::prev(it)->second.end > begin) --it;
    while (it != held_.end() && it->first < end) {
      valid_[it->second.value] = false;
      it = held_.erase(it);
    }
  }

  void ForgetActivations() {
    for (auto it = held_.begin(); it != held_.end();) {
      const bool activation = ValueOf(it->second.value).kind == ValueKind::kActivation;
      if (activation) valid_[it->second.value] = false;
      it = activation ? held_.erase(it) : std::next(it);
    }
  }

  const StepPlan& plan_;
  const Program& program_;
  const bool training_;
  const int micro_steps_;
  int micro_step_ = 0;
  size_t index_ = 0;              // of the op being run
  std::map<int64_t, Held> held_;  // arena bytes by begin; disjoint
  std::vector<bool> valid_;       // by value: its bytes hold it
  std::vector<int> written_in_;   // by value that accumulates: last micro-step that added to it
  std::vector<Group> groups_;
  int scalar_reductions_ = 0;
};

}  // namespace

absl::Status VerifyValues(const StepPlan& plan, const Program& program) {
  if (program.ops.empty()) return absl::OkStatus();
  for (int micro_steps : UnrolledMicroSteps(plan, program)) {
    MP_RETURN_IF_ERROR(Simulation(plan, program, micro_steps).Run());
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
