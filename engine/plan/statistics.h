// Where a model's running statistics lie: end to end in one persistent buffer, the f32 ones first,
// so that one call averages them over the ranks.
#ifndef MILEPOST_ENGINE_PLAN_STATISTICS_H_
#define MILEPOST_ENGINE_PLAN_STATISTICS_H_

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"

namespace milepost::plan {

struct StatisticsLayout {
  std::vector<int64_t> offsets;  // bytes, by index into graph.statistics
  int64_t f32_elements = 0;
  int64_t bytes = 0;
};

StatisticsLayout LayOutStatistics(const graph::Graph& graph);

// Whether ranks make statistics of their own rows alone, so that they must be averaged.
bool StatisticsDiffer(const graph::Graph& graph);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_STATISTICS_H_
