#include "engine/plan/verification/group_sizes.h"

#include <algorithm>

namespace milepost::plan {

int RanksOf(const FlatGroup& group, const PlanOptions& options) {
  return group.of_experts ? options.world / options.expert : options.world;
}

int ShardsOf(const FlatGroup& group, const PlanOptions& options) {
  return options.Shards() == 1 || !group.of_experts ? options.Shards() : RanksOf(group, options);
}

bool KeepsCodes(Optimizer optimizer) { return optimizer == Optimizer::kAdamW8Bit; }

int StatesKept(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kAdamW:
    case Optimizer::kAdamW8Bit:
    case Optimizer::kLamb:
      return 2;
    case Optimizer::kAdan:
      return 4;
    default:
      return 1;
  }
}

FactorSizes FactorsOf(const StepPlan& plan, const FlatGroup& group) {
  FactorSizes sizes;
  for (const GroupParameter& p : group.parameters) {
    const int64_t rows = p.shape.empty() ? 1 : p.shape[0], cols = p.elements / rows;
    const int64_t rank = std::min({rows, cols, plan.options.powersgd_rank});
    if (rank > 0 && 2 * rank * (rows + cols) < p.elements) {
      sizes.left += rank * rows;
      sizes.right += rank * cols;
    } else {
      sizes.whole += p.elements;
    }
  }
  return sizes;
}

}  // namespace milepost::plan
