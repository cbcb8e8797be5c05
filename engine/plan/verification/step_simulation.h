// A step that is run in program order over symbolic bytes: what each byte of the arenas holds is
// known at every op. Internal to verification; VerifyValues is the entry.
//
//   MP_RETURN_IF_ERROR(StepSimulation(plan, program, /*micro_steps=*/3).Run());
//
// verify_values.cc has what ops read and write, verify_groups.cc what they do to flat groups and to
// the step's scalars, verify_offload.cc what goes between a device, its host and a disk,
// verify_step_end.cc what must have been done when the step is over.
//
// Not thread-safe, and for one run. The plan and its program outlive it.
#ifndef MILEPOST_ENGINE_PLAN_VERIFICATION_STEP_SIMULATION_H_
#define MILEPOST_ENGINE_PLAN_VERIFICATION_STEP_SIMULATION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/graph/graph.h"
#include "engine/plan/accesses.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

class StepSimulation {
 public:
  StepSimulation(const StepPlan& plan, const Program& program, int micro_steps);

  // INTERNAL with the first violation.
  absl::Status Run();

 private:
  using OpKind = graph::OpKind;
  using ValueId = graph::ValueId;

  static constexpr int kNever = -1;  // not yet in this step
  // Of a group: the master, and each state with its scales.
  static constexpr int kMostStates = 1 + 2 * kernels::kMaxStates;

  struct Group {
    int reductions = 0;
    int across = 0;     // reductions among replicas
    int additions = 0;  // of what another pipeline stage has made
    int parts = 0;      // sums over tensor ranks
    int rounds = 0;
    size_t factored = 0;  // how many of FactorOps() are done
    int forgets = 0;      // of errors, where the step is skipped
    int norms = 0;
    int updates = 0;
    int gathers = 0;
    int averages = 0;
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

  // verify_values.cc
  absl::Status RunOps(When when, bool last_micro_step);
  absl::Status RunOp();
  absl::Status Read(ValueId id);
  absl::Status Write(const graph::Output& output);
  absl::Status MoveInPlace(const graph::Output& output, bool allowed);
  absl::Status Accumulate(const graph::Output& output);
  // `id` now owns its bytes; whatever lay there is gone.
  void Hold(ValueId id) { HoldBytes(id, ValueAccess(program_, id, true)); }
  void HoldBytes(ValueId id, const Access& access);
  void Evict(ValueId id);
  void Evict(int64_t begin, int64_t end);
  void ForgetTransients();

  // verify_groups.cc
  absl::Status GroupOp();
  absl::Status CheckComplete(int group) const;
  absl::Status AddShared(int index);
  absl::Status SumParts(int index);
  absl::Status CheckParts(int index) const;
  absl::Status Reduce(int index);
  void LetGo(int index);
  absl::Status Round(int index);
  std::vector<OpKind> FactorOps() const;
  absl::Status Factor(int index);
  absl::Status ForgetErrors(int index);
  absl::Status CheckSummed(int index, int across) const;
  absl::Status CheckReduced(int index) const;
  absl::Status CheckShard(int index) const;
  absl::Status Gather(int index);
  std::vector<OpKind> Preparations(int index) const;
  absl::Status Prepare(int index);
  absl::Status CheckPrepared(int index) const;
  absl::Status UpdateGroup(int index);
  absl::Status Average(int index);
  absl::Status ReduceUpdateNorms();
  absl::Status ReduceScalars();
  absl::Status ReduceStatistics();
  absl::Status GatherAmaxes();
  absl::Status UpdateScalings();

  // verify_offload.cc
  absl::Status CheckOnHost(int index) const;
  absl::Status GradientToHost(int index);
  absl::Status ScalarsToHost();
  bool HasState(int index) const;
  absl::Status ReadState(int index);
  absl::Status WriteState(int index);
  absl::Status ParametersToDevice(int index);

  // verify_step_end.cc
  absl::Status CheckEnd() const;
  absl::Status CheckResults() const;
  absl::Status CheckStatistics() const;
  absl::Status CheckScalings() const;
  absl::Status CheckOnDisk(size_t index) const;
  absl::Status CheckUntouched(size_t index) const;

  // Gradients that are sharded or rounded are started in every micro-step and reduced in it.
  bool EveryMicroStep(const graph::Value& value) const {
    return value.kind == graph::ValueKind::kParameterGradient && plan_.options.GradientsPass();
  }

  // How often a step reduces each group's shards among replicas.
  int AcrossReplicas() const { return plan_.options.Replicas() > 1 ? 1 : 0; }

  // How often a step reduces a group. As factors its gradient travels to a rank itself too.
  int Reductions(size_t index) const {
    if (plan_.groups[index].Compressed()) return 1;
    if (plan_.options.world == 1) return 0;
    return plan_.options.ShardsGradients() ? micro_steps_ : 1;
  }

  // How often a step adds to the average of a group that is trained.
  int Averages() const { return plan_.options.averages ? 1 : 0; }

  // Copies of the group's parameters back to the device in a step.
  int Returns(size_t index) const { return plan_.groups[index].Offloaded() ? 1 : 0; }

  Access GroupBytes(BufferId buffer) const {
    return {buffer, 0, plan_.buffers[buffer].bytes, true};
  }

  // Values beyond the graph's: gradient shards, updates, norms of updates, on the host gradients,
  // parameters and scalars, the largest magnitudes, states that are on disk, and factors.
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
  ValueId LeftFactors(int index) const {
    return State(static_cast<int>(groups_.size()), 0) + 2 * index;
  }
  ValueId RightFactors(int index) const { return LeftFactors(index) + 1; }
  int NormReductions() const {
    return plan_.update_norms != kNoBuffer && plan_.options.Shards() > 1 ? 1 : 0;
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

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_VERIFICATION_STEP_SIMULATION_H_
