// Which blocks to recompute so that activations keep within a budget: `train.recompute: budget`.
//
//   MP_ASSIGN_OR_RETURN(std::vector<Recompute> by_block, ChooseRecompute(budget, blocks, draft));
//
// Spends as few FLOPs in the recomputation as it can: first whole blocks keep what fits, then cheap
// outputs are dropped, and only then whole blocks are made once more, those first whose FLOPs save
// the most bytes. Of equal blocks the first ones of the model go first: at the fullest moment, when
// the backward begins, all of them are still waiting, while what a late block makes again would lie
// beside all that the earlier ones keep. Deterministic.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_RECOMPUTE_BUDGET_H_
#define MILEPOST_ENGINE_PLAN_PASSES_RECOMPUTE_BUDGET_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

// A plan without offsets that recomputes so.
using DraftWith = std::function<absl::StatusOr<StepPlan>(const std::vector<Recompute>& by_block)>;

// A level for each of `blocks`, such that PeakActivationBytes(draft(levels)) <= `budget`. Makes a
// few drafts for every doubling of the blocks, and where there are hundreds a few in all: their
// bytes are nearly linear in how many are recomputed. INVALID_ARGUMENT, with the least that is
// possible, when nothing is within the budget; else the errors are those of `draft`.
absl::StatusOr<std::vector<Recompute>> ChooseRecompute(int64_t budget, size_t blocks,
                                                       const DraftWith& draft);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_RECOMPUTE_BUDGET_H_
