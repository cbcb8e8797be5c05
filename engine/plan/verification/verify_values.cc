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
#include "engine/plan/statistics.h"
#include "engine/plan/verification/verify.h"

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
        shards_begin_(static_cast<ValueId>(program.graph.values.size())),
        valid_(program.graph.values.size() + (4 + kMostStates) * plan.groups.size() + 3, false),
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

  absl::Status Run() {
    for (size_t id = 0; id < program_.graph.values.size(); ++id) {
      const ValueKind kind = program_.graph.values[id].kind;
      const bool whole = kind == ValueKind::kParameter && !plan_.options.ShardsParameters();
      const bool kept =
          kind == ValueKind::kStatistic || kind == ValueKind::kScaling || kind == ValueKind::kCache;
      if (kind == ValueKind::kInput || kept || whole) {
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

 private:
  static constexpr int kNever = -1;      // not yet in this step
  static constexpr int kMostStates = 5;  // of a group

  struct Group {
    int reductions = 0;
    int across = 0;  // reductions among replicas
    int rounds = 0;
    int norms = 0;
    int updates = 0;
    int gathers = 0;
    size_t prepared = 0;  // how many of Preparations() are done
    int copies = 0;       // offloaded: of the gradient to the host
    int returns = 0;      // offloaded: of the parameters to the device
    int reads = 0;        // on disk: of the state
    int writes = 0;
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
      const int64_t begin = plan_.AddressOf(planned.workspace);
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
    if (value.kind == ValueKind::kParameter && groups_[group_of_[id]].updates > 0) {
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
  absl::Status MoveInPlace(const graph::Output& output, bool allowed) {
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

  absl::Status Accumulate(const graph::Output& output) {
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

  // Gradients that are sharded or rounded are started in every micro-step and reduced in it.
  bool EveryMicroStep(const graph::Value& value) const {
    return value.kind == ValueKind::kParameterGradient && plan_.options.GradientsPass();
  }

  // Every gradient of the group holds all micro-steps of this step or, before its reduction into a
  // shard, this micro-step.
  absl::Status CheckComplete(int group) const {
    const int last = plan_.options.GradientsPass() ? micro_step_ : micro_steps_ - 1;
    for (const GroupParameter& p : plan_.groups[group].parameters) {
      const ValueId gradient = program_.graph.parameters[p.parameter].gradient;
      if (gradient == kNoValue || !valid_[gradient] || written_in_[gradient] != last) {
        return Violation("the gradient of ", p.name, " is not complete");
      }
    }
    return absl::OkStatus();
  }

  // The micro-step's gradient goes into the shard, which thereby holds all micro-steps so far. The
  // first reduction assigns; the later ones find there what the earlier ones left.
  absl::Status Reduce(int index) {
    MP_RETURN_IF_ERROR(CheckComplete(index));
    Group& group = groups_[index];
    const std::string& name = plan_.groups[index].name;
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

  // Of a whole gradient in fp32: what counts lies in the group's shard.
  void LetGo(int index) {
    for (const GroupParameter& p : plan_.groups[index].parameters) {
      valid_[program_.graph.parameters[p.parameter].gradient] = false;
    }
  }

  // The reduced gradient into bf16, once: the step has one micro-step.
  absl::Status Round(int index) {
    if (!plan_.options.RoundsGradients() || groups_[index].rounds > 0) {
      return Violation(plan_.groups[index].name, " is rounded again, or is kept in fp32");
    }
    MP_RETURN_IF_ERROR(CheckSummed(index, AcrossReplicas()));
    HoldBytes(shards_begin_ + index, GroupBytes(plan_.groups[index].gradient_shard_buffer));
    ++groups_[index].rounds;
    LetGo(index);
    return absl::OkStatus();
  }

  // The group's gradient of the whole step is there, reduced; so often among replicas. It may have
  // to be rounded yet.
  absl::Status CheckSummed(int index, int across) const {
    const Group& group = groups_[index];
    if (group.reductions != Reductions() || group.across != across) {
      return Violation(plan_.groups[index].name, " is not reduced");
    }
    const bool whole = !plan_.options.ShardsGradients() || plan_.options.RoundsGradients();
    return whole ? CheckComplete(index) : CheckShard(index);
  }

  // As the update reads it.
  absl::Status CheckReduced(int index) const {
    if (!plan_.options.RoundsGradients()) return CheckSummed(index, AcrossReplicas());
    return CheckShard(index);
  }

  absl::Status CheckShard(int index) const {
    if (valid_[shards_begin_ + index]) return absl::OkStatus();
    return Violation("the gradient shard of ", plan_.groups[index].name,
                     " is not written, or its bytes are reused");
  }

  // Into values of the program (before use), or in place (after the update).
  absl::Status Gather(int index) {
    Group& group = groups_[index];
    const std::string& name = plan_.groups[index].name;
    if (!Op().outputs.empty()) {
      if (!plan_.options.ShardsParameters() || program_.ops[index_].when != When::kEveryMicroStep ||
          group.updates > 0) {
        return Violation(name, " is gathered for use, but not sharded or already updated");
      }
      return absl::OkStatus();
    }
    if (plan_.options.ShardsParameters())
      return Violation(name, " has no buffer to be gathered in");
    if (group.updates != 1 || group.returns != Returns(index)) {
      return Violation(name, " is gathered before its update");
    }
    ++group.gathers;
    return absl::OkStatus();
  }

  // What must come between the scalars' reduction and the group's update, in this order.
  std::vector<OpKind> Preparations(int index) const {
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
  absl::Status Prepare(int index) {
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
  absl::Status CheckPrepared(int index) const {
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

  // Copies of the group's parameters back to the device in a step.
  int Returns(size_t index) const { return plan_.groups[index].Offloaded() ? 1 : 0; }

  // What the host updates by is there.
  absl::Status CheckOnHost(int index) const {
    if (plan_.groups[index].disk_turn >= 0 && !HasState(index)) {
      return Violation("the state of ", plan_.groups[index].name,
                       " is not read, or its bytes are reused");
    }
    if (valid_[HostGradient(index)] && valid_[HostScalars()]) return absl::OkStatus();
    return Violation("the host has not got the gradient of ", plan_.groups[index].name,
                     " and the scalars, or their bytes are reused");
  }

  absl::Status GradientToHost(int index) {
    MP_RETURN_IF_ERROR(CheckReduced(index));
    if (!plan_.groups[index].Offloaded()) return Violation("is not offloaded");
    HoldBytes(HostGradient(index), GroupBytes(plan_.groups[index].host_gradient_buffer));
    ++groups_[index].copies;
    return absl::OkStatus();
  }

  absl::Status ScalarsToHost() {
    if (scalar_reductions_ != 1) return Violation("the scalars are not reduced");
    if (plan_.host_scalars == kNoBuffer || valid_[HostScalars()]) {
      return Violation("there is no place for the scalars on the host, or they are there");
    }
    HoldBytes(HostScalars(), GroupBytes(plan_.host_scalars));
    return absl::OkStatus();
  }

  // The group's state is in its place on the host.
  bool HasState(int index) const {
    int state = 0;
    for (const GroupState& s : StatesOf(plan_.groups[index])) {
      if (s.buffer != kNoBuffer && !valid_[State(index, state)]) return false;
      ++state;
    }
    return true;
  }

  absl::Status ReadState(int index) {
    const FlatGroup& group = plan_.groups[index];
    if (group.disk_turn < 0 || groups_[index].reads + groups_[index].updates > 0) {
      return Violation("the state of ", group.name, " is read once too often, or is on no disk");
    }
    int state = 0;
    for (const GroupState& s : StatesOf(group)) {
      if (s.buffer != kNoBuffer) HoldBytes(State(index, state), GroupBytes(s.buffer));
      ++state;
    }
    ++groups_[index].reads;
    return absl::OkStatus();
  }

  absl::Status WriteState(int index) {
    const FlatGroup& group = plan_.groups[index];
    if (group.disk_turn < 0 || groups_[index].updates != 1 || !HasState(index)) {
      return Violation("the updated state of ", group.name,
                       " is not there to be written, or its bytes are reused");
    }
    ++groups_[index].writes;
    return absl::OkStatus();
  }

  absl::Status ParametersToDevice(int index) {
    const FlatGroup& group = plan_.groups[index];
    const bool staged = group.host_parameter_buffer != kNoBuffer;
    // What is not staged is the master.
    const bool there = staged                 ? valid_[HostParameters(index)]
                       : group.disk_turn >= 0 ? valid_[State(index, 0)]
                                              : true;
    if (groups_[index].updates != 1 || !there) {
      return Violation("the host has no updated parameters of ", group.name);
    }
    ++groups_[index].returns;
    return absl::OkStatus();
  }

  // By the optimizer; offloaded, what it leaves for the device takes the place of another group's.
  absl::Status UpdateGroup(int index) {
    const FlatGroup& group = plan_.groups[index];
    MP_RETURN_IF_ERROR(CheckPrepared(index));
    if (scalar_reductions_ != 1) return Violation(group.name, ": the scalars are not reduced");
    ++groups_[index].updates;
    if (group.host_parameter_buffer != kNoBuffer) {
      HoldBytes(HostParameters(index), GroupBytes(group.host_parameter_buffer));
    }
    return absl::OkStatus();
  }

  // Values beyond the graph's: gradient shards, updates, norms of updates, on the host gradients,
  // parameters and scalars, the largest magnitudes, and states that are on disk.
  ValueId HostGradient(int index) const {
    return shards_begin_ + 2 * static_cast<ValueId>(groups_.size()) + 1 + index;
  }
  ValueId HostParameters(int index) const {
    return HostGradient(index) + static_cast<ValueId>(groups_.size());
  }
  ValueId HostScalars() const { return HostParameters(static_cast<int>(groups_.size())); }
  ValueId Update(int index) const {
    return shards_begin_ + static_cast<ValueId>(groups_.size()) + index;
  }
  ValueId Norms() const { return shards_begin_ + 2 * static_cast<ValueId>(groups_.size()); }
  ValueId Amaxes() const { return HostScalars() + 1; }
  ValueId State(int index, int state) const { return Amaxes() + 1 + index * kMostStates + state; }
  int NormReductions() const {
    return plan_.update_norms != kNoBuffer && plan_.options.Shards() > 1 ? 1 : 0;
  }

  absl::Status ReduceUpdateNorms() {
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

  static bool WorksOnGroup(OpKind kind) {
    switch (kind) {
      case OpKind::kReduceGradients:
      case OpKind::kReduceReplicas:
      case OpKind::kRoundGradients:
      case OpKind::kGradNorm:
      case OpKind::kOptimizer:
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

  absl::Status GroupOp() {
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
      case OpKind::kReduceReplicas:
        // Complete within the shard's ranks, and not yet beyond them.
        MP_RETURN_IF_ERROR(CheckSummed(index, 0));
        ++group.across;
        return absl::OkStatus();
      case OpKind::kRoundGradients:
        return Round(index);
      case OpKind::kGradNorm:
        MP_RETURN_IF_ERROR(CheckReduced(index));
        ++group.norms;
        return absl::OkStatus();
      case OpKind::kOptimizer:
        return UpdateGroup(index);
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

  absl::Status ReduceScalars() {
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].norms != (plan_.groups[i].frozen ? 0 : 1)) {
        return Violation("the norm of ", plan_.groups[i].name, " is not known");
      }
    }
    for (const graph::LossHead& head : program_.graph.losses) {
      if (written_in_[head.sums] == micro_steps_ - 1) continue;
      return Violation("the loss of ", head.name, " is not complete");
    }
    ++scalar_reductions_;
    return absl::OkStatus();
  }

  // What it reduces is a rank's own.
  absl::Status ReduceStatistics() {
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
  absl::Status GatherAmaxes() {
    for (const graph::Scaling& scaling : program_.graph.scalings) {
      if (valid_[scaling.amax] && written_in_[scaling.amax] == micro_steps_ - 1) continue;
      return Violation(ValueOf(scaling.amax).name, " is not complete");
    }
    HoldBytes(Amaxes(), GroupBytes(plan_.gathered_amaxes));
    ++amax_gathers_;
    return absl::OkStatus();
  }
  absl::Status UpdateScalings() {
    if (amax_gathers_ != 1 || !valid_[Amaxes()]) {
      return Violation("the largest magnitudes are not gathered, or their bytes are reused");
    }
    if (scalar_reductions_ != 1) return Violation("whether the step updates is not known");
    ++scaling_updates_;
    return absl::OkStatus();
  }
  absl::Status CheckScalings() const {
    const int expected = program_.graph.scalings.empty() ? 0 : 1;
    if (amax_gathers_ == expected && scaling_updates_ == expected) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the scalings are updated ", scaling_updates_,
                                            " times from ", amax_gathers_, " gathers"));
  }

  // Ranks that make statistics of their own rows agree at the end of a step.
  absl::Status CheckStatistics() const {
    const int expected = plan_.options.world > 1 && StatisticsDiffer(program_.graph) ? 1 : 0;
    if (averages_ != expected) {
      return absl::InternalError(absl::StrCat("the running statistics are averaged ", averages_,
                                              " times, expected ", expected));
    }
    for (const graph::Statistic& statistic : program_.graph.statistics) {
      if (valid_[statistic.value] && written_in_[statistic.value] == micro_steps_ - 1) continue;
      return absl::InternalError(
          absl::StrCat(ValueOf(statistic.value).name, " is not moved by the last micro-step"));
    }
    return absl::OkStatus();
  }

  // How often a step reduces each group's shards among replicas.
  int AcrossReplicas() const { return plan_.options.Replicas() > 1 ? 1 : 0; }

  // How often a step reduces each group.
  int Reductions() const {
    if (plan_.options.world == 1) return 0;
    return plan_.options.ShardsGradients() ? micro_steps_ : 1;
  }

  absl::Status CheckResults() const {
    const graph::Graph& graph = program_.graph;
    const bool generates = graph.losses.empty();
    bool complete = !generates || (graph.logits != kNoValue && valid_[graph.logits]);
    for (const graph::LossHead& head : graph.losses) complete &= bool{valid_[head.sums]};
    for (size_t id = 0; id < graph.values.size(); ++id) {
      if (graph.values[id].kind != ValueKind::kCache) continue;
      complete &= valid_[id] && written_in_[id] == micro_steps_ - 1;
    }
    if (complete) return absl::OkStatus();
    return absl::InternalError("a result of the program is not written");
  }

  absl::Status CheckEnd() const {
    MP_RETURN_IF_ERROR(CheckResults());
    if (!training_) return absl::OkStatus();
    MP_RETURN_IF_ERROR(CheckStatistics());
    MP_RETURN_IF_ERROR(CheckScalings());
    if (scalar_reductions_ != 1) {
      return absl::InternalError(
          absl::StrCat("the scalars are reduced ", scalar_reductions_, " times"));
    }
    if (norm_reductions_ != NormReductions()) {
      return absl::InternalError(
          absl::StrCat("the norms of updates are reduced ", norm_reductions_, " times"));
    }
    const bool gathers_after = plan_.options.Shards() > 1 && !plan_.options.ShardsParameters();
    const int gathers = gathers_after ? 1 : 0;
    for (size_t i = 0; i < groups_.size(); ++i) {
      const Group& group = groups_[i];
      if (plan_.groups[i].frozen) {
        MP_RETURN_IF_ERROR(CheckUntouched(i));
        continue;
      }
      if (group.reductions == Reductions() && group.across == AcrossReplicas() &&
          group.norms == 1 && group.updates == 1 && group.gathers == gathers &&
          group.copies == Returns(i) && group.returns == Returns(i)) {
        MP_RETURN_IF_ERROR(CheckOnDisk(i));
        continue;
      }
      return absl::InternalError(absl::StrCat(
          "group ", plan_.groups[i].name, ": ", group.reductions, " reductions, ", group.norms,
          " norms, ", group.updates, " updates and ", group.gathers, " gathers, ", group.copies,
          " copies and ", group.returns, " returns; expected ", Reductions(), ", 1, 1, ", gathers,
          ", ", Returns(i), " and ", Returns(i)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOnDisk(size_t index) const {
    const int expected = plan_.groups[index].disk_turn >= 0 ? 1 : 0;
    if (groups_[index].reads == expected && groups_[index].writes == expected) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("group ", plan_.groups[index].name, ": its state is ",
                                            "read ", groups_[index].reads, " times and written ",
                                            groups_[index].writes, " times"));
  }

  absl::Status CheckUntouched(size_t index) const {
    const Group& group = groups_[index];
    if (group.reductions + group.across + group.rounds + group.norms + group.updates +
                group.gathers ==
            0 &&
        group.prepared == 0 && group.copies + group.returns + group.reads + group.writes == 0) {
      return absl::OkStatus();
    }
    return absl::InternalError(
        absl::StrCat("group ", plan_.groups[index].name, " is frozen, but reduced or updated"));
  }

  // `id` now owns its bytes; whatever lay there is gone.
  void Hold(ValueId id) { HoldBytes(id, ValueAccess(program_, id, true)); }

  void HoldBytes(ValueId id, const Access& access) {
    const int64_t base = plan_.AddressOf(access.buffer);
    Evict(base + access.begin, base + access.end);
    held_[base + access.begin] = {base + access.end, id};
    valid_[id] = true;
  }

  // What lay where `id` lies is gone.
  void Evict(ValueId id) {
    const Access access = ValueAccess(program_, id, true);
    const int64_t base = plan_.AddressOf(access.buffer);
    Evict(base + access.begin, base + access.end);
  }

  Access GroupBytes(BufferId buffer) const {
    return {buffer, 0, plan_.buffers[buffer].bytes, true};
  }

  void Evict(int64_t begin, int64_t end) {
    auto it = held_.lower_bound(begin);
    if (it != held_.begin() && std::prev(it)->second.end > begin) --it;
    while (it != held_.end() && it->first < end) {
      valid_[it->second.value] = false;
      it = held_.erase(it);
    }
  }

  // What does not outlive a micro-step.
  void ForgetTransients() {
    for (auto it = held_.begin(); it != held_.end();) {
      const ValueId id = it->second.value;
      const bool transient = id < shards_begin_ && (ValueOf(id).kind == ValueKind::kActivation ||
                                                    EveryMicroStep(ValueOf(id)));
      if (transient) valid_[id] = false;
      it = transient ? held_.erase(it) : std::next(it);
    }
  }

  const StepPlan& plan_;
  const Program& program_;
  const bool training_;
  const int micro_steps_;
  int micro_step_ = 0;
  size_t index_ = 0;              // of the op being run
  std::map<int64_t, Held> held_;  // arena bytes by begin; disjoint
  const ValueId shards_begin_;    // group g's gradient shard counts as value shards_begin_ + g
  std::vector<bool> valid_;       // by value: its bytes hold it
  std::vector<int> written_in_;   // by value that accumulates: last micro-step that added to it
  std::vector<int> group_of_;     // by value: a parameter's or gradient's flat group; -1: none
  std::vector<Group> groups_;
  int scalar_reductions_ = 0;
  int amax_gathers_ = 0;
  int scaling_updates_ = 0;
  int norm_reductions_ = 0;  // of kReduceUpdateNorms
  int averages_ = 0;
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
