#include "engine/plan/statistics.h"

#include <algorithm>

namespace milepost::plan {

StatisticsLayout LayOutStatistics(const graph::Graph& graph) {
  StatisticsLayout layout = {.offsets = std::vector<int64_t>(graph.statistics.size())};
  const auto place = [&](DType dtype) {
    for (size_t i = 0; i < graph.statistics.size(); ++i) {
      const graph::Value& value = graph.values[graph.statistics[i].value];
      if (value.dtype != dtype) continue;
      layout.offsets[i] = layout.bytes;
      layout.bytes += graph::Elements(value.shape) * ByteSize(dtype);
    }
  };
  place(DType::kF32);
  layout.f32_elements = layout.bytes / ByteSize(DType::kF32);
  constexpr int64_t kCounter = 8;
  layout.bytes = (layout.bytes + kCounter - 1) / kCounter * kCounter;
  place(DType::kI64);
  return layout;
}

bool StatisticsDiffer(const graph::Graph& graph) {
  return std::any_of(graph.ops.begin(), graph.ops.end(), [](const graph::Op& op) {
    return op.kind == graph::OpKind::kBatchNormStatistics && !op.attributes.image.synchronised;
  });
}

}  // namespace milepost::plan
