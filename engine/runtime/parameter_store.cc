#include "engine/runtime/parameter_store.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/random.h"
#include "engine/runtime/randomness.h"
#include "engine/runtime/shard_ranks.h"

namespace milepost::runtime {

namespace {
constexpr const char* kKindNames[] = {"master", "m", "v"};
}  // namespace

ParameterStore::ParameterStore(const plan::StepPlan& plan, const graph::Graph& graph, char* arena,
                               comm::Communicator* communicator)
    : plan_(plan),
      graph_(graph),
      kinds_(plan::HasSecondMoment(plan.options.optimizer) ? 3 : 2),
      arena_(arena),
      communicator_(communicator),
      rank_(communicator == nullptr ? 0 : communicator->rank()) {
  for (const graph::Parameter& parameter : graph.parameters) {
    const graph::Value& value = graph.values[parameter.value];
    for (int kind = 0; kind < kinds_; ++kind) {
      v1::TensorInfo& info = tensors_.emplace_back();
      info.set_name(value.name);
      info.set_kind(kKindNames[kind]);
      info.set_dtype(graph::Name(graph::DType::kF32));
      for (int64_t dimension : value.shape) info.add_shape(dimension);
    }
  }
}

int64_t ParameterStore::HeldBegin(const plan::FlatGroup& group) const {
  return group.shard_elements * (rank_ % plan_.options.Shards());
}

int64_t ParameterStore::ParameterBegin(const plan::FlatGroup& group) const {
  return plan_.options.ShardsParameters() ? 0 : HeldBegin(group);
}

float* ParameterStore::Data(const plan::FlatGroup& group, int kind) const {
  const plan::BufferId buffers[] = {group.master_buffer, group.m_buffer, group.v_buffer};
  if (buffers[kind] != plan::kNoBuffer) return reinterpret_cast<float*>(BufferAt(buffers[kind]));
  // fp32: the parameter is its own master.
  return reinterpret_cast<float*>(BufferAt(group.parameter_buffer)) + ParameterBegin(group);
}

template <typename RangeOf>
std::vector<StateInterval> ParameterStore::Intervals(RangeOf range_of) const {
  std::vector<StateInterval> intervals;
  for (const plan::FlatGroup& group : plan_.groups) {
    const Range range = range_of(group);
    for (const plan::GroupParameter& p : group.parameters) {
      const int64_t begin = std::max(p.begin, range.begin);
      const int64_t end = std::min(p.begin + p.elements, range.end);
      if (begin >= end) continue;
      for (int kind = 0; kind < kinds_; ++kind) {
        float* data = Data(group, kind) + (begin - HeldBegin(group));
        intervals.push_back({.tensor = p.parameter * kinds_ + kind,
                             .begin = begin - p.begin,
                             .end = end - p.begin,
                             .data = reinterpret_cast<char*>(data)});
      }
    }
  }
  std::sort(intervals.begin(), intervals.end(),
            [](const StateInterval& a, const StateInterval& b) { return a.tensor < b.tensor; });
  return intervals;
}

std::vector<StateInterval> ParameterStore::Held() const {
  return Intervals([this](const plan::FlatGroup& group) {
    return Range{HeldBegin(group), HeldBegin(group) + group.shard_elements};
  });
}

std::vector<StateInterval> ParameterStore::Saved() const {
  // Ranks that hold the same shard (at stage 0: everything) share the work.
  return Intervals([this](const plan::FlatGroup& group) {
    const int64_t count = group.padded_elements / plan_.options.world;
    const int64_t begin = HeldBegin(group) + rank_ / plan_.options.Shards() * count;
    return Range{begin, begin + count};
  });
}

void ParameterStore::Initialize(uint64_t seed) {
  for (const StateInterval& interval : Held()) {
    float* data = reinterpret_cast<float*>(interval.data);
    const int64_t count = interval.end - interval.begin;
    const int parameter = interval.tensor / kinds_;
    const graph::Parameter& p = graph_.parameters[parameter];
    if (interval.tensor % kinds_ != 0 || p.initializer == graph::Initializer::kZeros) {
      kernels::Fill(data, count, 0.0F);
    } else if (p.initializer == graph::Initializer::kOnes) {
      kernels::Fill(data, count, 1.0F);
    } else {
      kernels::NormalInit(
          data, count, 0.0F, static_cast<float>(p.stddev), seed,
          RandomStream(RandomPurpose::kInitialize, static_cast<uint32_t>(parameter)),
          static_cast<uint64_t>(interval.begin));
    }
  }
}

absl::Status ParameterStore::RebuildParameters() {
  const bool bf16 = plan_.options.compute_dtype == graph::DType::kBF16;
  const int64_t element = graph::ByteSize(plan_.options.compute_dtype);
  for (const plan::FlatGroup& group : plan_.groups) {
    char* parameters = BufferAt(group.parameter_buffer);
    if (bf16) {
      kernels::CastToBf16(Data(group, 0), group.shard_elements,
                          reinterpret_cast<kernels::bf16*>(parameters) + ParameterBegin(group));
    }
    if (plan_.options.Shards() > 1 && !plan_.options.ShardsParameters()) {
      MP_RETURN_IF_ERROR(
          communicator_->AllGather(parameters, static_cast<size_t>(group.padded_elements * element),
                                   ShardRanks(plan_.options, rank_)));
    }
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime
