// Verification, part 8: where context ranks divide sequences, what each has of all tokens (some
// heads) and what it has of some tokens (all heads) are told apart. Attention reads the one, nearly
// all else the other, and exchanges alone turn one into the other. Of heads that several ranks
// have, each computes its part of the queries, and what they make is added up.
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

constexpr int64_t kByTokens = 0;

bool IsAttention(OpKind kind) {
  return kind == OpKind::kAttention || kind == OpKind::kAttentionBackward;
}

// Needs all tokens of a sequence: their places.
bool NeedsAllTokens(OpKind kind) {
  return IsAttention(kind) || kind == OpKind::kRope || kind == OpKind::kRopeBackward;
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
      : options_(plan.options), graph_(program.graph), parts_(graph_.values.size(), kByTokens) {}

  absl::Status Verify(const graph::Op& op) {
    int64_t parts = kByTokens;
    for (const ValueId input : op.inputs) {
      if (input != kNoValue && parts_[input] != kByTokens) parts = parts_[input];
    }
    if (op.kind == OpKind::kTokensToHeads || op.kind == OpKind::kHeadsToTokens) {
      return VerifyExchange(op, parts);
    }
    const bool any = parts != kByTokens;
    if (any && !ComputesByHeads(op.kind)) {
      return Wrong(op, " reads some heads of all tokens, as if they were a rank's tokens");
    }
    for (const size_t input : any ? RowInputs(op.kind) : std::vector<size_t>()) {
      const std::string& name = graph_.values[op.inputs[input]].name;
      if (parts_[op.inputs[input]] == kByTokens) {
        return Wrong(op, absl::StrCat(" reads ", name, " of a rank's own tokens"));
      }
      if (parts_[op.inputs[input]] == parts) continue;
      return Wrong(op, absl::StrCat(" reads ", name, ", whose heads other ranks have"));
    }
    if (NeedsAllTokens(op.kind) && (!any || op.attributes.sequence != options_.sequence)) {
      return Wrong(op, " has not all tokens of the sequences");
    }
    if (IsAttention(op.kind) && op.attributes.query_parts != parts) {
      return Wrong(op, absl::StrCat(" computes one of ", op.attributes.query_parts,
                                    " parts of queries, whose heads ", parts, " ranks have"));
    }
    for (const graph::Output& output : op.outputs) {
      if (output.value == kNoValue) continue;
      const graph::Value& value = graph_.values[output.value];
      // No gradient of a gamma.
      const bool rows = value.kind == graph::ValueKind::kActivation && value.shape.size() > 1;
      parts_[output.value] = rows ? parts : kByTokens;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(const graph::Op& op, const std::string& what) const {
    const ValueId first = op.outputs.empty() ? kNoValue : op.outputs[0].value;
    const std::string of = first == kNoValue ? "" : " (" + graph_.values[first].name + ")";
    return absl::InternalError(absl::StrCat("plan: ", Name(op.kind), of, what));
  }

  absl::Status VerifyExchange(const graph::Op& op, int64_t read) {
    const bool to_heads = op.kind == OpKind::kTokensToHeads;
    if (to_heads == (read != kByTokens)) return Wrong(op, " reads what it should make");
    const graph::Shape& x = graph_.values[op.inputs[0]].shape;
    const graph::Shape& y = graph_.values[op.outputs[0].value].shape;
    const graph::Shape& tokens = to_heads ? x : y;
    const graph::Shape& heads = to_heads ? y : x;
    const graph::Attributes& a = op.attributes;
    const int64_t ranks = options_.context, parts = a.query_parts;
    if (parts < 1 || ranks % parts != 0 || (!to_heads && read != parts)) {
      return Wrong(op, absl::StrCat(" has ", parts, " parts of queries for ", ranks, " ranks"));
    }
    const int64_t groups = ranks / parts, all = a.heads + 2 * a.kv_heads;
    // Of keys a head at least, which then several groups have.
    const int64_t keys = a.kv_heads == 0 ? 0 : std::max<int64_t>(1, a.kv_heads / groups);
    const int64_t own = a.heads / groups + 2 * keys;
    const bool keys_divide = a.kv_heads % groups == 0 || groups % a.kv_heads == 0;
    if (heads[0] != a.batch * options_.sequence || heads[0] != tokens[0] * ranks ||
        tokens[1] % all != 0 || heads[1] * all != tokens[1] * own || a.heads % groups != 0 ||
        !keys_divide) {
      return Wrong(op, absl::StrCat(" does not divide the heads among ", ranks, " ranks"));
    }
    parts_[op.outputs[0].value] = to_heads ? parts : kByTokens;
    return absl::OkStatus();
  }

  const PlanOptions& options_;
  const graph::Graph& graph_;
  std::vector<int64_t> parts_;  // by value: query_parts of the heads that it has, or kByTokens
};

}  // namespace

absl::Status VerifyHeads(const StepPlan& plan, const Program& program) {
  if (plan.options.context == 1) {
    for (const PlannedOp& planned : program.ops) {
      if (planned.op.attributes.query_parts == 1) continue;
      return absl::InternalError(
          absl::StrCat("plan: ", Name(planned.op.kind), " leaves out queries"));
    }
    return absl::OkStatus();
  }
  HeadsVerifier verifier(plan, program);
  for (const PlannedOp& planned : program.ops) {
    const absl::Status status = verifier.Verify(planned.op);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
