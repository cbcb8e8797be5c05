// Which blocks of a model each stage of a pipeline has.
//
//   MP_ASSIGN_OR_RETURN(const std::vector<int> runs, RunsOfBlocks(graph, /*runs=*/4));
//
// A stage has one run of neighbouring blocks or, in an interleaved pipeline, several: run r is that
// of stage r % stages. They are cut so that the one with the most arithmetic has as little as can
// be: the embedding and the loss head count as they are. Pure.
#ifndef MILEPOST_ENGINE_PLAN_PIPELINE_STAGES_H_
#define MILEPOST_ENGINE_PLAN_PIPELINE_STAGES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"

namespace milepost::plan {

// By block of a graph without a backward: its FLOPs.
std::vector<double> BlockCosts(const graph::Graph& graph);

// The run of each of them. INVALID_ARGUMENT: there are fewer blocks than runs.
absl::StatusOr<std::vector<int>> RunsOfBlocks(const graph::Graph& graph, int runs);

// The same of anything that has a cost: by item, in order; every run has one. `costs` has at least
// `runs` entries.
std::vector<int> CutEvenly(const std::vector<double>& costs, int runs);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PIPELINE_STAGES_H_
