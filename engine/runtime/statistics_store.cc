#include "engine/runtime/statistics_store.h"

#include <algorithm>

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
    info.set_dtype(graph::Name(value.dtype));
    for (int64_t dimension : value.shape) info.add_shape(dimension);
    intervals_.push_back(
        {.tensor = first_tensor + static_cast<int32_t>(i),
         .end = graph::Elements(value.shape),
         .data = arena + plan.buffers[plan.statistics].offset + layout.offsets[i]});
  }
}

void StatisticsStore::Initialize() const {
  for (size_t i = 0; i < intervals_.size(); ++i) {
    const double initial = graph_.statistics[i].initial;
    const int64_t count = intervals_[i].end;
    if (graph_.values[graph_.statistics[i].value].dtype == graph::DType::kF32) {
      std::fill_n(reinterpret_cast<float*>(intervals_[i].data), count, static_cast<float>(initial));
    } else {
      std::fill_n(reinterpret_cast<int64_t*>(intervals_[i].data), count,
                  static_cast<int64_t>(initial));
    }
  }
}

}  // namespace milepost::runtime
