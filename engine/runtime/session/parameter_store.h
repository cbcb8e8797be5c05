// A rank's parameters and optimizer state inside its arenas: which elements of which tensors it
// holds, their initial values, and the compute-dtype parameters made from the masters.
//
//   ParameterStore store(plan, plan.train.graph, arena.data(), communicator);
//   for (int part = 0; part < store.parts(); ++part) {
//     store.Initialize(seed, part);                         // or fill store.Held(part)
//   }
//   MP_RETURN_IF_ERROR(store.RebuildParameters());          // collective
//
// Parts: one; where states lie on disk (state_disk.h) each group's states that do, which are all in
// the same memory, and last what does not.
//
// Tensors are numbered by parameter and, within one, as plan::StatesOf lists its group's. What
// adapters adapt (FlatGroup::base) is no state: it has numbers of its own, and only masters. Where
// it is packed into 4 bits, its tensors' dtype is kPackedDType, their shape that of what is packed,
// and its intervals are of bytes (engine/dtype/nf4.h).
// What the constructor is given must outlive the store. Not synchronised.
#ifndef MILEPOST_ENGINE_RUNTIME_SESSION_PARAMETER_STORE_H_
#define MILEPOST_ENGINE_RUNTIME_SESSION_PARAMETER_STORE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/drawn_values.h"
#include "engine/runtime/executor/state_interval.h"
#include "engine/runtime/offload/state_disk.h"
#include "engine/runtime/session/divided_rows.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::comm {
class Communicator;
}

namespace milepost::runtime {

inline constexpr char kPackedDType[] = "NF4";

class ParameterStore {
 public:
  // `communicator` may be null where the plan's world is 1, `host_arena` where nothing is
  // offloaded.
  ParameterStore(const plan::StepPlan& plan, const graph::Graph& graph, char* arena,
                 comm::Communicator* communicator, char* host_arena = nullptr);

  const std::vector<v1::TensorInfo>& tensors() const { return state_.tensors; }
  const std::vector<v1::TensorInfo>& base_tensors() const { return base_.tensors; }
  int parts() const { return plan_.options.offload_disk ? groups() + 1 : 1; }
  // Everything of the part that this rank holds; sorted by tensor.
  std::vector<StateInterval> Held(int part) const;
  // The same of the base, in the numbers of base_tensors().
  std::vector<StateInterval> HeldBase(int part) const;
  // What it saves: over all ranks, every element exactly once, in intervals without a gap.
  // Tensors that tensor ranks divide are saved as their rows, of which each of these ranks has
  // some: ShareDivided fetches the others' parts of its rows.
  std::vector<StateInterval> Saved(int part) const;
  // Before what Saved gives is read. Collective; nothing where tensor ranks divide nothing.
  absl::Status ShareDivided();
  // What gradients that travel as factors have left out: every rank goes on with the ranks' mean,
  // which has the same sum and can be saved once. Before what Saved gives is read. Collective;
  // nothing where there is none.
  absl::Status ShareErrors();

  // Masters from (seed, parameter, element), also of the base; m and v zero; averages as
  // StartAverages. Local.
  void Initialize(uint64_t seed, int part = 0);
  // Averages become the masters. Local.
  void StartAverages();
  // What Initialize and RebuildParameters leave in a buffer of masters or parameters, but for
  // zeros, for a device that makes it; not of those that DrawnOnHost says. Needs no arena and no
  // other rank, as WriteDrawn.
  std::vector<DrawnValues> Drawn(uint64_t seed, plan::BufferId buffer) const;
  // Whether it is one of packed parameters, or of those that tensor ranks divide.
  bool DrawnOnHost(plan::BufferId buffer) const;
  // The same of bytes [begin, begin + bytes) of such a buffer, written to `at`.
  void WriteDrawn(uint64_t seed, plan::BufferId buffer, int64_t begin, int64_t bytes,
                  char* at) const;
  // Compute-dtype parameters from the masters: a cast and, where parameters are whole but masters
  // are sharded, an all-gather. `disk`: where masters are, which pass through their turns' memory;
  // null: they are in the arenas.
  absl::Status RebuildParameters(StateDisk* disk = nullptr);

 private:
  int groups() const { return static_cast<int>(plan_.groups.size()); }
  void RebuildShard(const plan::FlatGroup& group);
  // Tensors with a numbering of their own.
  struct Tensors {
    std::vector<v1::TensorInfo> tensors;
    std::vector<int64_t> item_bytes;  // by tensor
    std::vector<int32_t> first;       // by parameter: its master, or what its successor has
    int ParameterOf(int32_t tensor) const;
  };
  static void Add(const graph::Value& value, const std::vector<int64_t>& shape,
                  const plan::GroupState& state, Tensors& to);
  void Initialize(uint64_t seed, const Tensors& of, const std::vector<StateInterval>& intervals);
  // Elements [begin, end) of a parameter, of a group.
  void InitializeParameter(uint64_t seed, int parameter, int64_t begin, int64_t end,
                           float* at) const;
  // Of its master, in the type that it is kept in.
  void InitializeInterval(uint64_t seed, int parameter, const v1::TensorInfo& tensor,
                          const StateInterval& interval) const;
  // Which has these masters or parameters; null: none.
  const plan::FlatGroup* GroupOf(plan::BufferId buffer) const;
  absl::Status Gather(const plan::FlatGroup& group);
  bool InPart(const plan::FlatGroup& group, int part) const;
  // First of the group's elements whose master this rank holds (stage 0: all; else its shard).
  int64_t HeldBegin(const plan::FlatGroup& group) const;
  // Where those begin in the parameter buffer.
  int64_t ParameterBegin(const plan::FlatGroup& group) const;
  // Where element HeldBegin() of the group lies.
  char* Data(const plan::FlatGroup& group, const plan::GroupState& state) const;
  float* Master(const plan::FlatGroup& group) const;
  char* BufferAt(plan::BufferId id) const {
    const plan::Buffer& buffer = plan_.buffers[id];
    return (buffer.memory == plan::Memory::kHost ? host_arena_ : arena_) + buffer.offset;
  }
  // The pieces of state, or of the base, within elements [begin, end) of each group, sorted by
  // tensor.
  struct Range {
    int64_t begin;
    int64_t end;
  };
  // Nothing of groups whose range is empty.
  template <typename RangeOf>
  std::vector<StateInterval> Intervals(int part, bool base, RangeOf range_of) const;
  Range HeldRange(const plan::FlatGroup& group) const {
    return {HeldBegin(group), HeldBegin(group) + group.shard_elements};
  }
  Range SavedRange(const plan::FlatGroup& group) const;
  StateInterval IntervalOf(const plan::FlatGroup& group, const plan::GroupParameter& p,
                           const plan::GroupState& state, int32_t tensor, int64_t begin,
                           int64_t end) const;
  StateInterval Divided(const plan::GroupParameter& p, StateInterval interval) const;
  void DivideSaved();
  void DivideSaved(const plan::FlatGroup& group, const plan::GroupParameter& p);
  bool InRows(const plan::GroupParameter& p) const;

  const plan::StepPlan& plan_;
  const graph::Graph& graph_;
  char* const arena_;
  char* const host_arena_;
  comm::Communicator* const communicator_;
  const int rank_;  // among the data ranks
  const int tensor_rank_;
  const int island_;
  Tensors state_, base_;
  std::optional<DividedRows> divided_;  // where tensor ranks divide parameters
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_SESSION_PARAMETER_STORE_H_
