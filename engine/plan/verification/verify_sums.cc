// Verification, part 7: what one of the tensor ranks makes of a sum is only ever added up, or
// handed on to where it is, and not behind a scatter; what it knows of rows of logits is gathered
// before it is used; and of tables whose rows they divide nobody but they read rows.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;

// Of what lies around layers of experts: what is made of a rank's part of a sum is one too, and
// added up later.
struct HandsOn {
  OpKind kind;
  size_t input, output;
};
constexpr HandsOn kHandsOn[] = {{OpKind::kCombineRows, 0, 0},
                                {OpKind::kCombineRowsBackward, 0, 1},
                                {OpKind::kRouteExpertsBackward, 3, 0},
                                {OpKind::kDispatchRowsBackward, 0, 0},
                                {OpKind::kRowsFromExperts, 0, 0}};

// The outputs of an op that are a tensor rank's part of a sum.
std::vector<ValueId> PartsOf(const graph::Op& op) {
  const graph::Attributes& a = op.attributes;
  std::vector<ValueId> parts;
  const auto add = [&](size_t output) {
    if (op.outputs[output].value != kNoValue) parts.push_back(op.outputs[output].value);
  };
  if (op.kind == OpKind::kLinear && a.divided && !a.divides_columns) add(0);
  if (op.kind == OpKind::kLinearBackwardInput && a.divides_columns) add(0);
  if (op.kind == OpKind::kExpertLinear && a.divided && !a.divides_columns) add(0);
  if (op.kind == OpKind::kExpertLinearBackwardInput && a.divides_columns) add(0);
  if (op.kind == OpKind::kTokenRows) add(0);
  if (op.kind == OpKind::kLmHeadLossBackward && a.divided) add(1);
  return parts;
}

const HandsOn* HandsOnPart(OpKind kind, size_t input) {
  for (const HandsOn& on : kHandsOn) {
    if (on.kind == kind && on.input == input) return &on;
  }
  return nullptr;
}

// By value: parameters of which a rank has some rows of a table or of its bias; copies of them too.
std::vector<bool> DividedTables(const StepPlan& plan, const Program& program) {
  std::vector<bool> tables(program.graph.values.size(), false);
  const auto divided = [&](int parameter) {
    const graph::TensorDivision& d = program.graph.parameters[parameter].division;
    return !d.whole() && d.period == d.run * plan.options.tensor &&
           program.graph.ElementsOf(program.graph.parameters[parameter]) <= d.period;
  };
  for (size_t i = 0; i < program.graph.parameters.size(); ++i) {
    tables[program.graph.parameters[i].value] = divided(static_cast<int>(i));
  }
  for (const PlannedOp& planned : program.ops) {
    if (planned.op.kind != OpKind::kGatherParameters || planned.op.outputs.empty()) continue;
    const FlatGroup& group = plan.groups[planned.op.attributes.group];
    for (size_t i = 0; i < group.parameters.size() && i < planned.op.outputs.size(); ++i) {
      tables[planned.op.outputs[i].value] = divided(group.parameters[i].parameter);
    }
  }
  return tables;
}

// Whether the op may read rows of a table that are not the tensor ranks' all.
bool ReadsOwnRows(const graph::Op& op) {
  const bool table = op.kind == OpKind::kTokenRows || op.kind == OpKind::kLmHeadParts ||
                     op.kind == OpKind::kLmHeadLoss || op.kind == OpKind::kLmHeadLossBackward;
  // An embedding with the sum of the ranks' rows as its last input.
  const bool embedding = op.kind == OpKind::kEmbedding && op.inputs.size() == 7;
  return op.attributes.divided && op.attributes.vocabulary > 0 && (table || embedding);
}

// The value that has every rank's part of the rows.
ValueId GatheredOf(const graph::Op& op) {
  if (op.attributes.vocabulary == 0) return kNoValue;
  if (op.kind == OpKind::kLmHeadLoss) return op.inputs.size() > 4 ? op.inputs[4] : kNoValue;
  if (op.kind != OpKind::kLmHeadLossBackward) return kNoValue;
  return op.inputs.size() > 5 ? op.inputs[5] : kNoValue;
}

absl::Status VerifyVocabulary(const StepPlan& plan, const Program& program) {
  const std::vector<bool> tables = DividedTables(plan, program);
  std::vector<OpKind> maker(program.graph.values.size(), graph::kNoOpKind);
  for (const PlannedOp& planned : program.ops) {
    const graph::Op& op = planned.op;
    const auto wrong = [&](const std::string& what) {
      return absl::InternalError(absl::StrCat("plan: ", Name(op.kind), what));
    };
    const bool layer = op.kind == OpKind::kLinear || op.kind == OpKind::kLinearBackwardInput;
    for (const ValueId input : op.inputs) {
      if (input == kNoValue || !tables[input] || layer || ReadsOwnRows(op)) continue;
      if (op.attributes.divided && op.attributes.vocabulary == 0) continue;  // between layers
      return wrong(absl::StrCat(" reads ", program.graph.values[input].name,
                                ", of which a tensor rank has some rows"));
    }
    const bool loss = op.kind == OpKind::kLmHeadLoss || op.kind == OpKind::kLmHeadLossBackward;
    if (loss && op.attributes.vocabulary > 0) {
      const ValueId gathered = GatheredOf(op);
      if (gathered == kNoValue || maker[gathered] != OpKind::kTensorGather) {
        return wrong(" has not what every tensor rank knows of its rows");
      }
    }
    for (const graph::Output& output : op.outputs) {
      if (output.value != kNoValue) maker[output.value] = op.kind;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifySums(const StepPlan& plan, const Program& program) {
  if (plan.options.tensor == 1) return absl::OkStatus();
  std::vector<bool> parts(program.graph.values.size(), false);
  std::vector<bool> spent = parts;  // a scatter leaves anything there
  for (const PlannedOp& planned : program.ops) {
    const graph::Op& op = planned.op;
    const bool scatters = op.kind == OpKind::kTensorScatter;
    const bool sums = op.kind == OpKind::kTensorReduce || scatters;
    // With all of it on each rank the slopes of tensor rank 0 would be missing on others.
    if (op.kind == OpKind::kRouteExpertsBackward && !parts[op.inputs[3]]) {
      return absl::InternalError(
          absl::StrCat("plan: ", Name(op.kind), " is not a tensor rank's part of a gradient"));
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const ValueId value = op.inputs[i];
      if (value == kNoValue || !parts[value]) continue;
      if (const HandsOn* on = HandsOnPart(op.kind, i); on != nullptr && !spent[value]) {
        parts[op.outputs[on->output].value] = true;
        continue;
      }
      if (spent[value] || !sums || i != 0) {
        return absl::InternalError(absl::StrCat(
            "plan: ", program.graph.values[value].name, ", a tensor rank's part, is read by ",
            Name(op.kind), spent[value] ? " behind its sum" : ""));
      }
      spent[value] = scatters;
    }
    for (const ValueId part : PartsOf(op)) parts[part] = true;
  }
  return VerifyVocabulary(plan, program);
}

}  // namespace milepost::plan
