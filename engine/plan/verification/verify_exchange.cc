// Verification of StepPlan::exchange and StepPlan::gather, which compute nothing: what they do to
// each group.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

// The program has this op in every micro-step, once for each of the groups, and nothing else.
absl::Status VerifyOncePerGroup(const Program& program, graph::OpKind kind,
                                const std::vector<bool>& groups) {
  std::vector<bool> seen(groups.size(), false);
  for (const PlannedOp& planned : program.ops) {
    const graph::Op& op = planned.op;
    const int32_t index = op.attributes.group;
    if (op.kind != kind || planned.when != When::kEveryMicroStep || index < 0 ||
        index >= static_cast<int32_t>(groups.size()) || !op.inputs.empty() || !op.outputs.empty() ||
        seen[index]) {
      return absl::InternalError(
          absl::StrCat(graph::Name(op.kind), ": has no place in an exchange of averages"));
    }
    seen[index] = true;
  }
  const auto [wanted, found] = std::mismatch(groups.begin(), groups.end(), seen.begin());
  if (wanted == groups.end()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(graph::Name(kind), ": group ", wanted - groups.begin(),
                                          *wanted ? " is left out" : " has no average"));
}

}  // namespace

absl::Status VerifyExchange(const StepPlan& plan) {
  const bool averages = plan.options.averages && !plan.train.ops.empty();
  const bool gathers = plan.options.Shards() > 1 && !plan.options.ShardsParameters();
  std::vector<bool> exchanged, gathered;
  for (const FlatGroup& group : plan.groups) {
    exchanged.push_back(averages && !group.frozen);
    gathered.push_back(gathers && exchanged.back());
  }
  MP_RETURN_IF_ERROR(
      VerifyOncePerGroup(plan.exchange, graph::OpKind::kExchangeAverages, exchanged));
  return VerifyOncePerGroup(plan.gather, graph::OpKind::kGatherParameters, gathered);
}

}  // namespace milepost::plan
