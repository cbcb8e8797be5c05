#include "engine/runtime/session/parameter_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/random.h"
#include "engine/runtime/executor/randomness.h"
#include "engine/runtime/executor/shard_ranks.h"
#include "engine/runtime/session/fill_interval.h"

namespace milepost::runtime {

namespace {
// Items of `state` that hold the first `elements` of a parameter.
int64_t Items(int64_t elements, const plan::GroupState& state) {
  return (elements + state.elements_per_item - 1) / state.elements_per_item;
}

uint64_t InitialStream(int parameter) {
  return RandomStream(RandomPurpose::kInitialize, static_cast<uint32_t>(parameter));
}

// The standard deviation, or the bound that gives it.
float ScaleOf(const graph::Parameter& p) {
  const bool uniform = p.initializer == graph::Initializer::kUniform;
  return static_cast<float>(uniform ? std::sqrt(3.0) * p.stddev : p.stddev);
}

// As what it is packed from.
void DescribePacked(const std::vector<int64_t>& unpacked, v1::TensorInfo& tensor) {
  tensor.set_dtype(kPackedDType);
  tensor.clear_shape();
  for (const int64_t dimension : unpacked) tensor.add_shape(dimension);
}
}  // namespace

ParameterStore::ParameterStore(const plan::StepPlan& plan, const graph::Graph& graph, char* arena,
                               comm::Communicator* communicator, char* host_arena)
    : plan_(plan),
      graph_(graph),
      arena_(arena),
      host_arena_(host_arena),
      communicator_(communicator),
      rank_(communicator == nullptr ? 0 : plan.options.DataRank(communicator->rank())),
      tensor_rank_(communicator == nullptr ? 0 : plan.options.TensorRank(communicator->rank())),
      island_(communicator == nullptr ? 0 : plan.options.IslandOf(communicator->rank())) {
  std::vector<const plan::FlatGroup*> group_of(graph.parameters.size());
  for (const std::vector<plan::FlatGroup>* groups : {&plan.groups, &plan.elsewhere}) {
    for (const plan::FlatGroup& group : *groups) {
      for (const plan::GroupParameter& p : group.parameters) group_of[p.parameter] = &group;
    }
  }
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const graph::Parameter& parameter = graph.parameters[i];
    const graph::Value& value = graph.values[parameter.value];
    std::vector<int64_t> shape = parameter.undivided;
    if (parameter.division.whole()) shape.assign(value.shape.begin(), value.shape.end());
    state_.first.push_back(static_cast<int32_t>(state_.tensors.size()));
    base_.first.push_back(static_cast<int32_t>(base_.tensors.size()));
    const std::vector<plan::GroupState> states = plan::StatesOf(*group_of[i]);
    if (group_of[i]->base) {
      Add(value, shape, states[0], base_);
      if (group_of[i]->Packed()) DescribePacked(graph.parameters[i].unpacked, base_.tensors.back());
      continue;
    }
    for (const plan::GroupState& state : states) Add(value, shape, state, state_);
  }
  if (plan.options.tensor > 1) DivideSaved();
}

void ParameterStore::Add(const graph::Value& value, const std::vector<int64_t>& shape,
                         const plan::GroupState& state, Tensors& to) {
  v1::TensorInfo& info = to.tensors.emplace_back();
  info.set_name(value.name);
  info.set_kind(state.kind);
  info.set_dtype(Name(state.dtype));
  to.item_bytes.push_back(ByteSize(state.dtype));
  if (state.elements_per_item == 1) {
    for (const int64_t dimension : shape) info.add_shape(dimension);
  } else {
    info.add_shape(Items(graph::Elements(value.shape), state));
  }
}

// Of parameters without a tensor the last has the one that follows.
int ParameterStore::Tensors::ParameterOf(int32_t tensor) const {
  const auto next = std::upper_bound(first.begin(), first.end(), tensor);
  return static_cast<int>(next - first.begin() - 1);
}

int64_t ParameterStore::HeldBegin(const plan::FlatGroup& group) const {
  return group.shard_elements * group.ShardOf(plan_.options, rank_);
}

int64_t ParameterStore::ParameterBegin(const plan::FlatGroup& group) const {
  return plan_.options.ShardsParameters() ? 0 : HeldBegin(group);
}

char* ParameterStore::Data(const plan::FlatGroup& group, const plan::GroupState& state) const {
  if (state.buffer != plan::kNoBuffer) return BufferAt(state.buffer);
  // The parameter is its own master.
  return BufferAt(group.parameter_buffer) + ParameterBegin(group) * ByteSize(state.dtype);
}

float* ParameterStore::Master(const plan::FlatGroup& group) const {
  return reinterpret_cast<float*>(Data(group, plan::StatesOf(group)[0]));
}

bool ParameterStore::InPart(const plan::FlatGroup& group, int part) const {
  if (!plan_.options.offload_disk) return true;
  const bool on_disk = plan::StatesOf(group)[0].buffer != plan::kNoBuffer;
  return part == (on_disk ? static_cast<int>(&group - plan_.groups.data()) : groups());
}

// Of the group's elements [begin, end), which are the parameter's.
StateInterval ParameterStore::IntervalOf(const plan::FlatGroup& group,
                                         const plan::GroupParameter& p,
                                         const plan::GroupState& state, int32_t tensor,
                                         int64_t begin, int64_t end) const {
  const int64_t item = (begin - HeldBegin(group)) / state.elements_per_item;
  StateInterval interval = {.tensor = tensor,
                            .begin = (begin - p.begin) / state.elements_per_item,
                            .end = Items(end - p.begin, state),
                            .data = Data(group, state) + item * ByteSize(state.dtype)};
  if (!group.divided) return interval;
  MP_CHECK(state.elements_per_item == 1) << "divided items";
  return Divided(p, interval);
}

// Of this rank's own elements of the parameter: as those of the whole one.
StateInterval ParameterStore::Divided(const plan::GroupParameter& p, StateInterval interval) const {
  const graph::TensorDivision& division = graph_.parameters[p.parameter].division;
  if (division.whole()) return interval;
  // What lies behind the tensor's end is padding.
  const int64_t elements = graph_.ElementsOf(graph_.parameters[p.parameter]);
  interval.begin = std::min(division.WholeIndex(interval.begin, tensor_rank_), elements);
  interval.end = std::min(division.WholeIndex(interval.end - 1, tensor_rank_) + 1, elements);
  if (!InRows(p)) return interval;
  interval.run = division.run;
  interval.period = division.period;
  interval.first = division.PieceOf(tensor_rank_) * division.run;
  return interval;
}

template <typename RangeOf>
std::vector<StateInterval> ParameterStore::Intervals(int part, bool base, RangeOf range_of) const {
  const Tensors& tensors = base ? base_ : state_;
  std::vector<StateInterval> intervals;
  for (const plan::FlatGroup& group : plan_.groups) {
    if (group.base != base || !InPart(group, part)) continue;
    const Range range = range_of(group);
    const std::vector<plan::GroupState> states = plan::StatesOf(group);
    for (const plan::GroupParameter& p : group.parameters) {
      const int64_t begin = std::max(p.begin, range.begin);
      const int64_t end = std::min(p.begin + p.elements, range.end);
      if (begin >= end) continue;
      for (size_t kind = 0; kind < states.size(); ++kind) {
        const int32_t tensor = tensors.first[p.parameter] + static_cast<int32_t>(kind);
        const StateInterval interval = IntervalOf(group, p, states[kind], tensor, begin, end);
        if (interval.begin < interval.end) intervals.push_back(interval);
      }
    }
  }
  std::sort(intervals.begin(), intervals.end(),
            [](const StateInterval& a, const StateInterval& b) { return a.tensor < b.tensor; });
  return intervals;
}

std::vector<StateInterval> ParameterStore::Held(int part) const {
  return Intervals(part, false, [this](const plan::FlatGroup& group) { return HeldRange(group); });
}

std::vector<StateInterval> ParameterStore::HeldBase(int part) const {
  return Intervals(part, true, [this](const plan::FlatGroup& group) { return HeldRange(group); });
}

// Ranks that hold the same shard (at stage 0: everything) share the work, and so do tensor ranks
// of what several of them have.
ParameterStore::Range ParameterStore::SavedRange(const plan::FlatGroup& group) const {
  if (group.IsCopy(plan_.options)) return {0, 0};
  const int64_t count = group.padded_elements / group.Ranks(plan_.options);
  const int64_t begin = HeldBegin(group) + group.SliceOf(plan_.options, rank_) * count;
  const int64_t of_island = group.Alike(plan_.options), alike = of_island * plan_.options.islands;
  const int64_t index = island_ * of_island + tensor_rank_ % of_island;
  return {begin + count * index / alike, begin + count * (index + 1) / alike};
}

std::vector<StateInterval> ParameterStore::Saved(int part) const {
  std::vector<StateInterval> saved =
      Intervals(part, false, [this](const plan::FlatGroup& group) { return SavedRange(group); });
  if (divided_.has_value()) {
    std::erase_if(saved, [](const StateInterval& interval) { return interval.run > 0; });
    const std::vector<StateInterval> rows = divided_->Intervals();
    saved.insert(saved.end(), rows.begin(), rows.end());
    std::stable_sort(
        saved.begin(), saved.end(),
        [](const StateInterval& a, const StateInterval& b) { return a.tensor < b.tensor; });
  }
  return saved;
}

void ParameterStore::DivideSaved() {
  const plan::PlanOptions& options = plan_.options;
  divided_.emplace(
      options.tensor, tensor_rank_,
      AmongAllRanks(options, {rank_, 1, 1}, communicator_->rank()).first - tensor_rank_);
  for (const plan::FlatGroup& group : plan_.groups) {
    if (!group.divided) continue;
    for (const plan::GroupParameter& p : group.parameters) DivideSaved(group, p);
  }
  divided_->Allocate();
}

void ParameterStore::DivideSaved(const plan::FlatGroup& group, const plan::GroupParameter& p) {
  if (!InRows(p)) return;
  const Range range = SavedRange(group);
  const int64_t begin = std::max(p.begin, range.begin);
  const int64_t end = std::min(p.begin + p.elements, range.end);
  const std::vector<plan::GroupState> states = plan::StatesOf(group);
  for (size_t kind = 0; kind < states.size(); ++kind) {
    std::optional<DividedRows::Piece> piece;
    if (begin < end) {
      const int32_t tensor = state_.first[p.parameter] + static_cast<int32_t>(kind);
      piece = {.held = IntervalOf(group, p, states[kind], tensor, begin, end),
               .item_bytes = ByteSize(states[kind].dtype),
               .begin = begin - p.begin,
               .end = end - p.begin};
    }
    divided_->Add(piece);
  }
}

// A rank has runs of several rows, and not one run of one.
bool ParameterStore::InRows(const plan::GroupParameter& p) const {
  const graph::Parameter& parameter = graph_.parameters[p.parameter];
  return !parameter.division.whole() && graph_.ElementsOf(parameter) > parameter.division.period;
}

absl::Status ParameterStore::ShareDivided() {
  return divided_.has_value() ? divided_->Share(*communicator_) : absl::OkStatus();
}

absl::Status ParameterStore::ShareErrors() {
  const int world = plan_.options.world;
  if (world == 1) return absl::OkStatus();
  for (const plan::FlatGroup& group : plan_.groups) {
    if (!group.Compressed()) continue;
    auto* error = reinterpret_cast<float*>(BufferAt(group.error_buffer));
    MP_RETURN_IF_ERROR(communicator_->AllReduce(
        absl::MakeSpan(error, static_cast<size_t>(group.padded_elements))));
    kernels::Scale(error, group.padded_elements, 1.0F / static_cast<float>(world));
  }
  return absl::OkStatus();
}

void ParameterStore::InitializeParameter(uint64_t seed, int parameter, int64_t begin, int64_t end,
                                         float* at) const {
  const graph::Parameter& p = graph_.parameters[parameter];
  if (p.initializer == graph::Initializer::kZeros) return kernels::Fill(at, end - begin, 0.0F);
  if (p.initializer == graph::Initializer::kOnes) return kernels::Fill(at, end - begin, 1.0F);
  const uint64_t stream = InitialStream(parameter);
  const auto first = static_cast<uint64_t>(begin);
  if (p.initializer == graph::Initializer::kUniform) {
    return kernels::UniformInit(at, end - begin, ScaleOf(p), seed, stream, first);
  }
  kernels::NormalInit(at, end - begin, 0.0F, ScaleOf(p), seed, stream, first);
}

void ParameterStore::InitializeInterval(uint64_t seed, int parameter, const v1::TensorInfo& tensor,
                                        const StateInterval& interval) const {
  const auto read = [&](int64_t begin, int64_t end, float* values) {
    InitializeParameter(seed, parameter, begin, end, values);
    return absl::OkStatus();
  };
  const absl::Status filled = FillInterval(tensor, interval, read);
  MP_CHECK(filled.ok()) << filled;
}

void ParameterStore::Initialize(uint64_t seed, const Tensors& of,
                                const std::vector<StateInterval>& intervals) {
  for (const StateInterval& interval : intervals) {
    const int parameter = of.ParameterOf(interval.tensor);
    if (interval.tensor != of.first[parameter]) {  // m, v and what belongs to them
      std::memset(interval.data, 0,
                  static_cast<size_t>(interval.elements() * of.item_bytes[interval.tensor]));
      continue;
    }
    InitializeInterval(seed, parameter, of.tensors[interval.tensor], interval);
  }
}

void ParameterStore::Initialize(uint64_t seed, int part) {
  Initialize(seed, state_, Held(part));
  Initialize(seed, base_, HeldBase(part));
  StartAverages();
}

void ParameterStore::StartAverages() {
  for (const plan::FlatGroup& group : plan_.groups) {
    if (group.average_buffer == plan::kNoBuffer) continue;
    const plan::GroupState master = plan::StatesOf(group)[0];
    auto* average = reinterpret_cast<float*>(BufferAt(group.average_buffer));
    if (master.dtype == DType::kBf16) {
      kernels::CastToFloat(reinterpret_cast<const bf16*>(Data(group, master)), group.shard_elements,
                           average);
    } else {
      std::copy_n(Master(group), group.shard_elements, average);
    }
  }
}

const plan::FlatGroup* ParameterStore::GroupOf(plan::BufferId buffer) const {
  const auto group =
      std::find_if(plan_.groups.begin(), plan_.groups.end(), [&](const plan::FlatGroup& g) {
        return g.parameter_buffer == buffer || plan::StatesOf(g)[0].buffer == buffer;
      });
  return group == plan_.groups.end() ? nullptr : &*group;
}

bool ParameterStore::DrawnOnHost(plan::BufferId buffer) const {
  const plan::FlatGroup* group = GroupOf(buffer);
  return group != nullptr && (group->Packed() || group->divided);
}

std::vector<DrawnValues> ParameterStore::Drawn(uint64_t seed, plan::BufferId buffer) const {
  std::vector<DrawnValues> drawn;
  const plan::FlatGroup* group = GroupOf(buffer);
  MP_CHECK(group != nullptr && !group->Packed());
  const bool parameters = group->parameter_buffer == buffer;
  const DType dtype = parameters ? group->parameter_dtype : DType::kF32;
  const int64_t first = HeldBegin(*group) - (parameters ? ParameterBegin(*group) : 0);
  const int64_t last = first + plan_.buffers[buffer].bytes / ByteSize(dtype);
  for (const plan::GroupParameter& p : group->parameters) {
    const graph::Parameter& parameter = graph_.parameters[p.parameter];
    const int64_t from = std::max(p.begin, first), to = std::min(p.begin + p.elements, last);
    if (from >= to || parameter.initializer == graph::Initializer::kZeros) continue;
    drawn.push_back({.buffer = buffer,
                     .dtype = dtype,
                     .begin = from - first,
                     .count = to - from,
                     .initializer = parameter.initializer,
                     .scale = ScaleOf(parameter),
                     .seed = seed,
                     .stream = InitialStream(p.parameter),
                     .first = static_cast<uint64_t>(from - p.begin)});
  }
  return drawn;
}

void ParameterStore::WriteDrawn(uint64_t seed, plan::BufferId buffer, int64_t begin, int64_t bytes,
                                char* at) const {
  MP_CHECK(DrawnOnHost(buffer));
  const plan::FlatGroup* group = GroupOf(buffer);
  const bool parameters = group->parameter_buffer == buffer;
  const DType dtype = parameters ? group->parameter_dtype : group->master_dtype;
  const int64_t element = ByteSize(dtype);
  MP_CHECK(begin % element == 0 && bytes % element == 0) << begin << ", " << bytes;
  const int64_t first =
      begin / element + HeldBegin(*group) - (parameters ? ParameterBegin(*group) : 0);
  std::memset(at, 0, static_cast<size_t>(bytes));  // padding stays that
  for (const plan::GroupParameter& p : group->parameters) {
    const int64_t from = std::max(p.begin, first);
    const int64_t to = std::min(p.begin + p.elements, first + bytes / element);
    if (from >= to) continue;
    const Tensors& tensors = group->Packed() ? base_ : state_;
    v1::TensorInfo tensor = tensors.tensors[tensors.first[p.parameter]];
    if (!group->Packed()) tensor.set_dtype(Name(dtype));
    StateInterval interval = Divided(p, {.begin = from - p.begin, .end = to - p.begin});
    if (interval.begin >= interval.end) continue;
    interval.data = at + (from - first) * element;
    InitializeInterval(seed, p.parameter, tensor, interval);
  }
}

absl::Status ParameterStore::RebuildParameters(StateDisk* disk) {
  for (int group = 0; group < groups(); ++group) {
    if (disk != nullptr) MP_RETURN_IF_ERROR(disk->LoadMaster(group));
    RebuildShard(plan_.groups[group]);
    MP_RETURN_IF_ERROR(Gather(plan_.groups[group]));
  }
  return absl::OkStatus();
}

void ParameterStore::RebuildShard(const plan::FlatGroup& group) {
  if (group.master_dtype != DType::kF32) return;  // they are it
  const int64_t element = ByteSize(plan_.options.compute_dtype);
  char* mine = BufferAt(group.parameter_buffer) + ParameterBegin(group) * element;
  if (plan_.options.compute_dtype == DType::kBf16) {
    kernels::CastToBf16(Master(group), group.shard_elements, reinterpret_cast<bf16*>(mine));
  } else if (plan_.options.compute_dtype == DType::kF16) {
    kernels::CastToF16(Master(group), group.shard_elements, reinterpret_cast<f16*>(mine));
  } else if (group.master_buffer != plan::kNoBuffer) {
    std::memcpy(mine, Master(group), static_cast<size_t>(group.shard_elements * element));
  }
}

absl::Status ParameterStore::Gather(const plan::FlatGroup& group) {
  if (plan_.options.Shards() == 1 || plan_.options.ShardsParameters()) return absl::OkStatus();
  const int64_t element = ByteSize(group.parameter_dtype);
  return communicator_->AllGather(
      BufferAt(group.parameter_buffer), static_cast<size_t>(group.padded_elements * element),
      AmongAllRanks(plan_.options, ShardRanks(plan_.options, group, rank_), communicator_->rank()));
}

}  // namespace milepost::runtime
