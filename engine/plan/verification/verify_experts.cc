// Verification, part 10: where expert ranks share out experts, rows as a rank has sent them and
// rows as its own experts get them are told apart. Experts read the one, all else the other, and
// exchanges alone turn one into the other. And each rank has its share of the experts, in groups of
// their own.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/ops/experts/experts.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;

// Makes a row of each row alone, or copies all.
bool ComputesByRow(OpKind kind) {
  return ops::IsExpertProduct(kind) || kind == OpKind::kSwiGlu || kind == OpKind::kSwiGluBackward ||
         kind == OpKind::kGeGlu || kind == OpKind::kGeGluBackward || kind == OpKind::kCopyToHost ||
         kind == OpKind::kCopyToDevice;
}

class ExpertsVerifier {
 public:
  ExpertsVerifier(const StepPlan& plan, const Program& program)
      : options_(plan.options),
        graph_(program.graph),
        at_experts_(graph_.values.size(), false),
        segments_(graph_.values.size(), false) {
    for (const FlatGroup& group : plan.groups) {
      for (const GroupParameter& p : group.parameters) {
        group_of_[graph_.parameters[p.parameter].value] = &group;
      }
    }
    for (const PlannedOp& planned : program.ops) {
      if (planned.op.kind != OpKind::kGatherParameters) continue;
      for (const graph::Output& output : planned.op.outputs) {
        group_of_[output.value] = &plan.groups[planned.op.attributes.group];
      }
    }
  }

  absl::Status Verify(const graph::Op& op) {
    for (const ValueId input : op.inputs) {
      const auto group = group_of_.find(input);
      if (group == group_of_.end() || group->second->of_experts == ops::IsExpertProduct(op.kind))
        continue;
      return Wrong(op,
                   absl::StrCat(" reads ", group->second->name,
                                ops::IsExpertProduct(op.kind) ? ", which is of no expert"
                                                              : ", which only some ranks have"));
    }
    if (op.kind == OpKind::kExpertSegments) return VerifySegments(op);
    if (ops::IsRowsExchange(op.kind)) return VerifyExchange(op);
    bool any = false;
    for (const ValueId input : op.inputs) any |= input != kNoValue && at_experts_[input];
    if (any && !ComputesByRow(op.kind)) {
      return Wrong(op, " reads rows of all ranks, as if they were this rank's");
    }
    if (ops::IsExpertProduct(op.kind)) MP_RETURN_IF_ERROR(VerifyExperts(op));
    for (const graph::Output& output : op.outputs) {
      if (output.value == kNoValue) continue;
      at_experts_[output.value] =
          any && graph_.values[output.value].kind == graph::ValueKind::kActivation;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(const graph::Op& op, const std::string& what) const {
    const ValueId first = op.outputs.empty() ? kNoValue : op.outputs[0].value;
    const std::string of = first == kNoValue ? "" : " (" + graph_.values[first].name + ")";
    return absl::InternalError(absl::StrCat("plan: ", Name(op.kind), of, what));
  }

  // Its rows, and where they begin, are those of all ranks.
  absl::Status VerifyExperts(const graph::Op& op) const {
    const size_t rows = op.kind == OpKind::kExpertLinearBackwardWeight ? 2 : 1;
    for (size_t i = 0; i < rows; ++i) {
      if (!at_experts_[op.inputs[i]]) return Wrong(op, " has this rank's rows alone");
    }
    if (!segments_[op.inputs[rows]]) return Wrong(op, " does not know where rows begin");
    const int64_t segments = graph_.values[op.inputs[rows]].shape[0] - 1;
    const auto weights =
        static_cast<int64_t>(rows == 2 ? op.outputs.size() : op.inputs.size() - rows - 1);
    const int64_t experts = op.attributes.experts.count;
    if (experts * options_.expert == segments && experts * op.attributes.parts == weights) {
      return absl::OkStatus();
    }
    return Wrong(op, absl::StrCat(" has ", op.attributes.experts.count, " experts of ", segments,
                                  " among ", options_.expert, " ranks"));
  }

  absl::Status VerifySegments(const graph::Op& op) {
    const graph::ExpertsAttributes& experts = op.attributes.experts;
    const auto &offsets = graph_.values[op.inputs[0]], &made = graph_.values[op.outputs[0].value];
    if (experts.ranks != options_.expert || experts.count % options_.expert != 0 ||
        offsets.shape[0] != experts.count + 1 || made.shape != offsets.shape) {
      return Wrong(op, " does not share the experts out");
    }
    segments_[op.outputs[0].value] = true;
    return absl::OkStatus();
  }

  absl::Status VerifyExchange(const graph::Op& op) {
    const bool to_experts = op.kind == OpKind::kRowsToExperts;
    const ValueId from = op.inputs[0], to = op.outputs[0].value;
    if (at_experts_[from] == to_experts) return Wrong(op, " reads what it should make");
    const graph::Shape& own = graph_.values[to_experts ? from : to].shape;
    const graph::Shape& all = graph_.values[to_experts ? to : from].shape;
    const int64_t experts = op.attributes.experts.count;
    const bool even = op.attributes.experts.ranks == options_.expert &&
                      experts % options_.expert == 0 && own[1] == all[1] &&
                      graph_.values[op.inputs[1]].shape[0] == experts + 1;
    if (!even) return Wrong(op, " does not share the experts out");
    // A token picks an expert once, and so a rank at most as often as that has experts.
    const int64_t tokens = options_.micro_batch * options_.OwnSequence();
    const int64_t picks = std::min(own[0] / tokens, experts / options_.expert);
    if (own[0] % tokens != 0 || all[0] < options_.expert * tokens * picks) {
      return Wrong(op, absl::StrCat(" has room for ", all[0], " rows, which may be too few"));
    }
    const int block = graph_.values[op.inputs[1]].block;
    if (!segments_[op.inputs[2]] || graph_.values[op.inputs[2]].block != block) {
      return Wrong(op, " does not know where rows begin");
    }
    at_experts_[to] = to_experts;
    return absl::OkStatus();
  }

  const PlanOptions& options_;
  const graph::Graph& graph_;
  std::map<ValueId, const FlatGroup*> group_of_;  // by parameter, also a gathered one
  std::vector<bool> at_experts_;                  // by value: rows for this rank's experts
  std::vector<bool> segments_;                    // by value: where these begin
};

// The blocks of whose experts the rank computes something: all, or its stage's.
std::set<int> BlocksWithExperts(const Program& program) {
  std::set<int> blocks;
  for (const PlannedOp& planned : program.ops) {
    if (ops::IsExpertProduct(planned.op.kind)) blocks.insert(planned.op.block);
  }
  return blocks;
}

// Of each layer's experts, in their order, the rank has the part that is its own.
absl::Status VerifyOwnExperts(const StepPlan& plan, const Program& program) {
  const graph::Graph& graph = program.graph;
  const std::set<int> blocks = BlocksWithExperts(program);
  std::map<int, std::vector<int>> experts;  // parameters, by block
  std::set<int> own;
  for (const std::vector<FlatGroup>* groups : {&plan.groups, &plan.elsewhere}) {
    for (const FlatGroup& group : *groups) {
      if (!group.of_experts && groups == &plan.elsewhere && plan.options.pipeline == 1) {
        return absl::InternalError(absl::StrCat("plan: no rank has ", group.name));
      }
      for (const GroupParameter& p : group.parameters) {
        if (!group.of_experts) continue;
        const int block = graph.values[graph.parameters[p.parameter].value].block;
        if (blocks.contains(block)) experts[block].push_back(p.parameter);
        if (groups == &plan.groups) own.insert(p.parameter);
      }
    }
  }
  for (auto& [block, all] : experts) {
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t rank = i * static_cast<size_t>(plan.options.expert) / all.size();
      const bool is_own = rank == static_cast<size_t>(plan.options.expert_rank);
      if (own.contains(all[i]) == is_own) continue;
      return absl::InternalError(absl::StrCat(
          "plan: ", graph.values[graph.parameters[all[i]].value].name,
          is_own ? " is this expert rank's, which has it not" : " is another expert rank's"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyExperts(const StepPlan& plan, const Program& program) {
  if (plan.options.expert == 1 || program.ops.empty()) return absl::OkStatus();
  MP_RETURN_IF_ERROR(VerifyOwnExperts(plan, program));
  ExpertsVerifier verifier(plan, program);
  for (const PlannedOp& planned : program.ops) {
    MP_RETURN_IF_ERROR(verifier.Verify(planned.op));
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
