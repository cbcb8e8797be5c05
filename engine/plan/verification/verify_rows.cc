// Verification, part 9: where tensor ranks divide rows, a rank's own rows and the rows of all are
// told apart. Ops that go row by row alone read own rows; sums and gathers turn one into the other.
// A gradient that a rank makes of its own rows or heads is in a group whose parts are summed.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;

bool IsTransfer(OpKind kind) {
  return kind == OpKind::kStageSend || kind == OpKind::kStageReceive ||
         kind == OpKind::kCopyToHost || kind == OpKind::kCopyToDevice;
}

// All rows of what tensor ranks divide; 0 where they divide none. A pipeline's stage may only
// gather, or only divide.
int64_t DividedRows(const Program& program) {
  for (const PlannedOp& planned : program.ops) {
    const graph::Op& op = planned.op;
    const auto shape = [&](ValueId value) { return program.graph.values[value].shape; };
    if (op.kind == OpKind::kTensorScatter || op.kind == OpKind::kTensorRows) {
      return shape(op.inputs[0])[0];
    }
    if (op.kind != OpKind::kTensorGather) continue;
    const graph::Shape all = shape(op.outputs[0].value);
    if (all.size() == shape(op.inputs[0]).size()) return all[0];  // else of logits
  }
  return 0;
}

class RowsVerifier {
 public:
  RowsVerifier(const StepPlan& plan, const Program& program)
      : graph_(program.graph),
        rows_(DividedRows(program)),
        ranks_(plan.options.tensor),
        own_(graph_.values.size(), false),
        partial_(own_) {
    if (graph_.parameters.empty()) return;  // of a program that only exchanges
    for (const FlatGroup& group : plan.groups) {
      for (const GroupParameter& p : group.parameters) {
        const ValueId gradient = graph_.parameters[p.parameter].gradient;
        if (gradient != kNoValue) partial_[gradient] = group.partial && group.sharers == 1;
      }
    }
  }

  absl::Status Verify(const graph::Op& op) {
    switch (op.kind) {
      case OpKind::kTensorScatter:
      case OpKind::kTensorRows:
        return VerifyTaken(op);
      case OpKind::kTensorGather:
        return VerifyGathered(op);
      default:
        break;
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const ValueId value = op.inputs[i];
      if (value == kNoValue) continue;
      if (own_[value] && !op.attributes.divides_rows && !IsTransfer(op.kind)) {
        return Wrong(op, value, ", some rows, as if it were all");
      }
      if (i == 0 && !own_[value] && op.attributes.divides_rows) {
        return Wrong(op, value, ", all rows, as if it were this rank's own");
      }
    }
    for (const graph::Output& output : op.outputs) {
      if (output.value == kNoValue) continue;
      MP_RETURN_IF_ERROR(VerifyGradient(op, output.value));
      // Stages also hand on counts of experts' rows, which have one dimension.
      const bool counts =
          op.kind == OpKind::kStageReceive && graph_.values[output.value].shape.size() == 1;
      const bool handed = IsTransfer(op.kind) && !counts;
      own_[output.value] =
          (op.attributes.divides_rows || handed) && HasOwnRows(output.value, op.phase);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(const graph::Op& op, ValueId value, const std::string& what) const {
    return absl::InternalError(
        absl::StrCat("plan: ", Name(op.kind), " reads ", graph_.values[value].name, what));
  }
  absl::Status VerifyGradient(const graph::Op& op, ValueId value) const {
    if (graph_.values[value].kind != graph::ValueKind::kParameterGradient) return absl::OkStatus();
    const bool heads = op.kind == OpKind::kQkNormBackward;
    if (partial_[value] == (heads || op.attributes.divides_rows)) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("plan: ", Name(op.kind), " makes ", graph_.values[value].name,
                     partial_[value] ? ", all of it, as if it were" : ", as if it were more than",
                     " a tensor rank's part"));
  }

  // By its shape. In the backward what has one dimension is a part of a parameter's gradient.
  bool HasOwnRows(ValueId value, graph::Phase phase) const {
    const graph::Value& v = graph_.values[value];
    const bool rows = phase != graph::Phase::kBackward || v.shape.size() > 1;
    return rows && v.kind == graph::ValueKind::kActivation && v.shape[0] * ranks_ == rows_;
  }

  // Own rows of a value of all rows, and what is added to them.
  absl::Status VerifyTaken(const graph::Op& op) {
    const ValueId all = op.inputs[0], added = op.inputs[1], own = op.outputs[0].value;
    if (own_[all]) return Wrong(op, all, ", some rows, as if it were all");
    if (added != kNoValue && !own_[added]) {
      return Wrong(op, added, ", all rows, as if it were this rank's own");
    }
    if (graph_.values[own].shape[0] * ranks_ != graph_.values[all].shape[0]) {
      return Wrong(op, all, ", which it does not divide evenly");
    }
    own_[own] = true;
    return absl::OkStatus();
  }

  // Rows of a rank; or what it knows of the logits of all rows, of which it makes one value more.
  absl::Status VerifyGathered(const graph::Op& op) const {
    const ValueId own = op.inputs[0], all = op.outputs[0].value;
    const graph::Shape& from = graph_.values[own].shape;
    const graph::Shape& to = graph_.values[all].shape;
    const bool logits = to.size() > from.size();
    if (!logits && !own_[own]) return Wrong(op, own, ", all rows, as if it were this rank's own");
    if (graph::Elements(to) == graph::Elements(from) * ranks_) return absl::OkStatus();
    return Wrong(op, own, ", of which it does not make one for each rank");
  }

  const graph::Graph& graph_;
  const int64_t rows_;
  const int64_t ranks_;
  std::vector<bool> own_;      // by value
  std::vector<bool> partial_;  // by value: gradients in groups of parts
};

}  // namespace

absl::Status VerifyRows(const StepPlan& plan, const Program& program) {
  if (plan.options.tensor == 1) return absl::OkStatus();
  RowsVerifier rows(plan, program);
  for (const PlannedOp& planned : program.ops) MP_RETURN_IF_ERROR(rows.Verify(planned.op));
  return absl::OkStatus();
}

}  // namespace milepost::plan
