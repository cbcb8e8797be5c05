#include "engine/plan/pipeline/stages.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/ops/cost.h"

namespace milepost::plan {

std::vector<double> BlockCosts(const graph::Graph& graph) {
  std::vector<double> costs(graph.blocks.size(), 0);
  for (const graph::Op& op : graph.ops) {
    if (op.block >= 0) costs[op.block] += ops::OpCost(graph, op).flops;
  }
  return costs;
}

absl::StatusOr<std::vector<int>> RunsOfBlocks(const graph::Graph& graph, int runs) {
  if (graph.blocks.size() < static_cast<size_t>(runs)) {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.mesh.pipeline: times resources.mesh.chunks (if there are some) is ",
                     runs, ", but the model has only ", graph.blocks.size(), " blocks"));
  }
  return CutEvenly(BlockCosts(graph), runs);
}

std::vector<int> CutEvenly(const std::vector<double>& costs, int runs) {
  struct Cut {
    double most = std::numeric_limits<double>::infinity();  // of a run
    double squares = std::numeric_limits<double>::infinity();
    size_t begin = 0;  // of the last run
    bool operator<(const Cut& other) const {
      return most != other.most ? most < other.most : squares < other.squares;
    }
  };
  const size_t n = costs.size();
  std::vector<double> before(n + 1, 0);
  for (size_t i = 0; i < n; ++i) before[i + 1] = before[i] + costs[i];
  // best[k][i]: the first i items in k + 1 runs.
  std::vector<std::vector<Cut>> best(runs, std::vector<Cut>(n + 1));
  for (size_t i = 1; i <= n; ++i) best[0][i] = {before[i], before[i] * before[i], 0};
  for (int k = 1; k < runs; ++k) {
    for (size_t i = k + 1; i <= n; ++i) {
      for (size_t begin = k; begin < i; ++begin) {
        const double own = before[i] - before[begin];
        const Cut& rest = best[k - 1][begin];
        best[k][i] =
            std::min(best[k][i], {std::max(rest.most, own), rest.squares + own * own, begin});
      }
    }
  }
  std::vector<int> run_of(n, 0);
  size_t end = n;
  for (int k = runs - 1; k > 0; --k) {
    const size_t begin = best[k][end].begin;
    std::fill(run_of.begin() + static_cast<ptrdiff_t>(begin),
              run_of.begin() + static_cast<ptrdiff_t>(end), k);
    end = begin;
  }
  return run_of;
}

}  // namespace milepost::plan
