// Sizes of a flat group as the verifier reckons them: from the papers' formulas, and not from how
// the passes lay a group out.
#ifndef MILEPOST_ENGINE_PLAN_VERIFICATION_GROUP_SIZES_H_
#define MILEPOST_ENGINE_PLAN_VERIFICATION_GROUP_SIZES_H_

#include <cstdint>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Data ranks that have the group: of experts, those with the same ones.
int RanksOf(const FlatGroup& group, const PlanOptions& options);
// Into how many shards of equal size it is cut.
int ShardsOf(const FlatGroup& group, const PlanOptions& options);

// Not taken from the optimizers' definitions, which the planner reads: whether its states are
// codes, and how many there are.
bool KeepsCodes(Optimizer optimizer);
int StatesKept(Optimizer optimizer);

// PowerSGD (Vogels et al. 2019): which gradients travel as factors, and how many elements these
// have. All 0 but `whole` where none does.
struct FactorSizes {
  int64_t left = 0;
  int64_t right = 0;
  int64_t whole = 0;  // of the gradients that do not
};
FactorSizes FactorsOf(const StepPlan& plan, const FlatGroup& group);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_VERIFICATION_GROUP_SIZES_H_
