#include "engine/runtime/session/statistics_store.h"

#include <algorithm>

#include "engine/ops/fp8/fp8_cpu_kernel.h"
#include "engine/plan/scalings.h"
#include "engine/plan/statistics.h"
#include "engine/state/layout.h"

namespace milepost::runtime {

StatisticsStore::StatisticsStore(const plan::StepPlan& plan, const graph::Graph& graph, char* arena,
                                 int32_t first_tensor)
    : graph_(graph) {
  const plan::StatisticsLayout layout = plan::LayOutStatistics(graph);
  for (size_t i = 0; i < graph.statistics.size(); ++i) {
    const graph::Value& value = graph.values[graph.statistics[i].value];
    v1::TensorInfo& info = tensors_.emplace_back();
    info.set_name(value.name);
    info.set_kind(state::kStatisticKind);
    info.set_dtype(Name(value.dtype));
    for (int64_t dimension : value.shape) info.add_shape(dimension);
    intervals_.push_back(
        {.tensor = first_tensor + static_cast<int32_t>(i),
         .end = graph::Elements(value.shape),
         .data = arena + plan.buffers[plan.statistics].offset + layout.offsets[i]});
  }
  if (graph.scalings.empty()) return;
  static_assert(plan::kScalingFloats == kernels::kScalingFloats &&
                plan::kAmaxSlots == kernels::kAmaxSlots &&
                plan::kMostParts == kernels::kMostStacked);
  const auto tensors = static_cast<int64_t>(graph.scalings.size());
  v1::TensorInfo& info = tensors_.emplace_back();
  info.set_name("fp8");
  info.set_kind(state::kScalingKind);
  info.set_dtype(Name(DType::kF32));
  info.add_shape(tensors);
  info.add_shape(plan::kScalingFloats);
  intervals_.push_back({.tensor = first_tensor + static_cast<int32_t>(graph.statistics.size()),
                        .end = tensors * plan::kScalingFloats,
                        .data = arena + plan.buffers[plan.scalings].offset});
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
