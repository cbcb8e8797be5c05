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

absl::StatusOr<std::vector<int>> StagesOfBlocks(const graph::Graph& graph, int stages) {
  if (graph.blocks.size() < static_cast<size_t>(stages)) {
    return absl::InvalidArgumentError(absl::StrCat("resources.mesh.pipeline: ", stages,
                                                   " stages, but the model has only ",
                                                   graph.blocks.size(), " blocks"));
  }
  return CutEvenly(BlockCosts(graph), stages);
}

std::vector<int> CutEvenly(const std::vector<double>& costs, int stages) {
  struct Cut {
    double most = std::numeric_limits<double>::infinity();  // of a stage
    double squares = std::numeric_limits<double>::infinity();
    size_t begin = 0;  // of the last stage
    bool operator<(const Cut& other) const {
      return most != other.most ? most < other.most : squares < other.squares;
    }
  };
  const size_t n = costs.size();
  std::vector<double> before(n + 1, 0);
  for (size_t i = 0; i < n; ++i) before[i + 1] = before[i] + costs[i];
  // best[k][i]: the first i items in k + 1 stages.
  std::vector<std::vector<Cut>> best(stages, std::vector<Cut>(n + 1));
  for (size_t i = 1; i <= n; ++i) best[0][i] = {before[i], before[i] * before[i], 0};
  for (int k = 1; k < stages; ++k) {
    for (size_t i = k + 1; i <= n; ++i) {
      for (size_t begin = k; begin < i; ++begin) {
        const double own = before[i] - before[begin];
        const Cut& rest = best[k - 1][begin];
        best[k][i] =
            std::min(best[k][i], {std::max(rest.most, own), rest.squares + own * own, begin});
      }
    }
  }
  std::vector<int> stage_of(n, 0);
  size_t end = n;
  for (int k = stages - 1; k > 0; --k) {
    const size_t begin = best[k][end].begin;
    std::fill(stage_of.begin() + static_cast<ptrdiff_t>(begin),
              stage_of.begin() + static_cast<ptrdiff_t>(end), k);
    end = begin;
  }
  return stage_of;
}

}  // namespace milepost::plan
