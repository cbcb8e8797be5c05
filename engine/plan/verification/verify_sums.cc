// Verification, part 7: what one of the tensor ranks makes of a sum is only ever added up.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;

// The outputs of an op that are a tensor rank's part of a sum.
std::vector<ValueId> PartsOf(const graph::Op& op) {
  const graph::Attributes& a = op.attributes;
  std::vector<ValueId> parts;
  const auto add = [&](size_t output) {
    if (op.outputs[output].value != kNoValue) parts.push_back(op.outputs[output].value);
  };
  if (op.kind == OpKind::kLinear && a.divided && !a.divides_columns) add(0);
  if (op.kind == OpKind::kLinearBackwardInput && a.divides_columns) add(0);
  if (op.kind == OpKind::kQkNormBackward && a.divides_columns) {
    add(1);
    add(2);
  }
  return parts;
}

}  // namespace

absl::Status VerifySums(const StepPlan& plan, const Program& program) {
  if (plan.options.tensor == 1) return absl::OkStatus();
  std::vector<bool> parts(program.graph.values.size(), false);
  for (const PlannedOp& planned : program.ops) {
    const graph::Op& op = planned.op;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const ValueId value = op.inputs[i];
      const bool sums = op.kind == OpKind::kTensorReduce && i == 0;
      if (value == kNoValue || !parts[value] || sums) continue;
      return absl::InternalError(absl::StrCat("plan: ", program.graph.values[value].name,
                                              ", a tensor rank's part, is read by ",
                                              Name(op.kind)));
    }
    for (const ValueId part : PartsOf(op)) parts[part] = true;
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
