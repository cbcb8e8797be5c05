#include "engine/runtime/session/statistics_store.h"

#include <algorithm>
#include <string>

#include "engine/ops/fp8/fp8_cpu_kernel.h"
#include "engine/plan/compression.h"
#include "engine/plan/scalings.h"
#include "engine/plan/statistics.h"
#include "engine/state/layout.h"

namespace milepost::runtime {

StatisticsStore::StatisticsStore(const plan::StepPlan& plan, const graph::Graph& graph, char* arena,
                                 int32_t first_tensor)
    : graph_(graph), first_tensor_(first_tensor) {
  const plan::StatisticsLayout layout = plan::LayOutStatistics(graph);
  for (size_t i = 0; i < graph.statistics.size(); ++i) {
    const graph::Value& value = graph.values[graph.statistics[i].value];
    Add(value.name, state::kStatisticKind, value.dtype, {value.shape.begin(), value.shape.end()},
        arena + plan.buffers[plan.statistics].offset + layout.offsets[i]);
  }
  if (plan.options.powersgd_warm) AddFactors(plan, graph, arena);
  if (graph.scalings.empty()) return;
  static_assert(plan::kScalingFloats == kernels::kScalingFloats &&
                plan::kAmaxSlots == kernels::kAmaxSlots &&
                plan::kMostParts == kernels::kMostStacked);
  Add("fp8", state::kScalingKind, DType::kF32,
      {static_cast<int64_t>(graph.scalings.size()), plan::kScalingFloats},
      arena + plan.buffers[plan.scalings].offset);
}

void StatisticsStore::Add(absl::string_view name, const char* kind, DType dtype,
                          const std::vector<int64_t>& shape, char* data) {
  v1::TensorInfo& info = tensors_.emplace_back();
  info.set_name(std::string(name));
  info.set_kind(kind);
  info.set_dtype(Name(dtype));
  int64_t elements = 1;
  for (const int64_t dimension : shape) {
    info.add_shape(dimension);
    elements *= dimension;
  }
  intervals_.push_back({.tensor = first_tensor_ + static_cast<int32_t>(tensors_.size()) - 1,
                        .end = elements,
                        .data = data});
}

void StatisticsStore::AddFactors(const plan::StepPlan& plan, const graph::Graph& graph,
                                 char* arena) {
  for (const plan::FlatGroup& group : plan.groups) {
    if (!group.Compressed()) continue;
    char* right = arena + plan.buffers[group.right_buffer].offset;
    for (const plan::FactoredMatrix& m : plan::LayOutFactors(group).matrices) {
      const graph::Parameter& p = graph.parameters[group.parameters[m.parameter].parameter];
      Add(graph.values[p.value].name, state::kFactorKind, DType::kF32, {m.rank, m.cols},
          right + m.right * ByteSize(DType::kF32));
    }
  }
}

void StatisticsStore::InitializeScalings() const {
  for (size_t i = 0; i < graph_.scalings.size(); ++i) {
    const bool e5m2 = graph_.scalings[i].dtype == DType::kE5M2;
    kernels::InitializeScaling(
        e5m2 ? kLargestE5M2 : kLargestE4M3,
        reinterpret_cast<float*>(intervals_.back().data) + i * kernels::kScalingFloats);
  }
}

void StatisticsStore::Initialize() const {
  InitializeScalings();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].kind() != state::kFactorKind) continue;
    std::fill_n(reinterpret_cast<float*>(intervals_[i].data), intervals_[i].end, 0.0F);
  }
  for (size_t i = 0; i < graph_.statistics.size(); ++i) {
    const double initial = graph_.statistics[i].initial;
    const int64_t count = intervals_[i].end;
    if (graph_.values[graph_.statistics[i].value].dtype == DType::kF32) {
      std::fill_n(reinterpret_cast<float*>(intervals_[i].data), count, static_cast<float>(initial));
    } else {
      std::fill_n(reinterpret_cast<int64_t*>(intervals_[i].data), count,
                  static_cast<int64_t>(initial));
    }
  }
}

bool StatisticsStore::HasNewScalings() const {
  if (graph_.scalings.empty()) return false;
  const auto* records = reinterpret_cast<const float*>(intervals_.back().data);
  for (size_t i = 0; i < graph_.scalings.size(); ++i) {
    if (kernels::HasHistory(records + i * kernels::kScalingFloats)) return false;
  }
  return true;
}

}  // namespace milepost::runtime
