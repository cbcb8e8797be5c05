// Verification, part 8: where context ranks divide sequences, what each has of all tokens (some
// heads) and what it has of some tokens (all heads) are told apart. Attention reads the one, nearly
// all else the other, and exchanges alone turn one into the other.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;

// Needs all tokens of a sequence: their places.
bool NeedsAllTokens(OpKind kind) {
  return kind == OpKind::kAttention || kind == OpKind::kAttentionBackward ||
         kind == OpKind::kRope || kind == OpKind::kRopeBackward;
}

// May compute with all tokens of some heads: makes the same of them.
bool ComputesByHeads(OpKind kind) {
  switch (kind) {
    case OpKind::kQkNorm:
    case OpKind::kQkNormBackward:
    case OpKind::kCopyToHost:
    case OpKind::kCopyToDevice:
      return true;
    default:
      return NeedsAllTokens(kind);
  }
}

// Of such an op: the inputs with a row for each token, of which it has all or some.
std::vector<size_t> RowInputs(OpKind kind) {
  if (kind == OpKind::kAttentionBackward) return {0, 1, 2, 3};
  if (kind == OpKind::kQkNormBackward) return {0, 3};
  return {0};
}

class HeadsVerifier {
 public:
  HeadsVerifier(const StepPlan& plan, const Program& program)
      : options_(plan.options), graph_(program.graph), by_heads_(graph_.values.size(), false) {}

  absl::Status Verify(const graph::Op& op) {
    bool any = false;
    for (const ValueId input : op.inputs) any |= input != kNoValue && by_heads_[input];
    if (op.kind == OpKind::kTokensToHeads || op.kind == OpKind::kHeadsToTokens) {
      return VerifyExchange(op, any);
    }
    if (any && !ComputesByHeads(op.kind)) {
      return Wrong(op, " reads some heads of all tokens, as if they were a rank's tokens");
    }
    for (const size_t input : any ? RowInputs(op.kind) : std::vector<size_t>()) {
      if (by_heads_[op.inputs[input]]) continue;
      return Wrong(op, absl::StrCat(" reads ", graph_.values[op.inputs[input]].name,
                                    " of a rank's own tokens"));
    }
    if (NeedsAllTokens(op.kind) && (!any || op.attributes.sequence != options_.sequence)) {
      return Wrong(op, " has not all tokens of the sequences");
    }
    for (const graph::Output& output : op.outputs) {
      if (output.value == kNoValue) continue;
      const graph::Value& value = graph_.values[output.value];
      by_heads_[output.value] = any && value.kind == graph::ValueKind::kActivation &&
                                value.shape.size() > 1;  // no gradient of a gamma
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(const graph::Op& op, const std::string& what) const {
    const ValueId first = op.outputs.empty() ? kNoValue : op.outputs[0].value;
    const std::string of = first == kNoValue ? "" : " (" + graph_.values[first].name + ")";
    return absl::InternalError(absl::StrCat("plan: ", Name(op.kind), of, what));
  }

  absl::Status VerifyExchange(const graph::Op& op, bool read_by_heads) {
    const bool to_heads = op.kind == OpKind::kTokensToHeads;
    if (to_heads == read_by_heads) return Wrong(op, " reads what it should make");
    const graph::Shape& x = graph_.values[op.inputs[0]].shape;
    const graph::Shape& y = graph_.values[op.outputs[0].value].shape;
    const graph::Shape& tokens = to_heads ? x : y;
    const graph::Shape& heads = to_heads ? y : x;
    const graph::Attributes& a = op.attributes;
    const int64_t ranks = options_.context, all = a.heads + 2 * a.kv_heads;
    // Of keys a head at least, which then several ranks have.
    const int64_t keys = a.kv_heads == 0 ? 0 : std::max<int64_t>(1, a.kv_heads / ranks);
    const int64_t own = a.heads / ranks + 2 * keys;
    const bool keys_divide = a.kv_heads % ranks == 0 || ranks % a.kv_heads == 0;
    if (heads[0] != a.batch * options_.sequence || heads[0] != tokens[0] * ranks ||
        tokens[1] % all != 0 || heads[1] * all != tokens[1] * own || a.heads % ranks != 0 ||
        !keys_divide) {
      return Wrong(op, absl::StrCat(" does not divide the heads among ", ranks, " ranks"));
    }
    by_heads_[op.outputs[0].value] = to_heads;
    return absl::OkStatus();
  }

  const PlanOptions& options_;
  const graph::Graph& graph_;
  std::vector<bool> by_heads_;  // by value
};

}  // namespace

absl::Status VerifyHeads(const StepPlan& plan, const Program& program) {
  if (plan.options.context == 1) return absl::OkStatus();
  HeadsVerifier verifier(plan, program);
  for (const PlannedOp& planned : program.ops) {
    const absl::Status status = verifier.Verify(planned.op);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
