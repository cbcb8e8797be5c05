#include "engine/plan/passes/experts_pass.h"

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/expert_parallel/expert_parallel.h"

namespace milepost::plan {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

constexpr size_t kFirstWeight = 2;  // of kExpertLinear

class ExpertsDivider {
 public:
  ExpertsDivider(Graph& graph, int64_t ranks, int64_t own)
      : graph_(graph), ranks_(ranks), own_(own) {
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      parameters_[graph.parameters[i].value] = i;
    }
  }

  absl::Status Run() && {
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
    for (Op& op : ops) {
      if (op.kind == OpKind::kDispatchRows) {
        per_token_[op.outputs[0].value] = op.attributes.experts.per_token;
      }
      if (op.kind == OpKind::kExpertLinear) MP_RETURN_IF_ERROR(TakeOwn(op));
      const auto read = at_experts_.find(op.inputs.empty() ? kNoValue : op.inputs[0]);
      if (read != at_experts_.end()) {
        if (op.kind == OpKind::kCombineRows) {
          op.inputs[0] = ComeBack(op, read->second);
        } else {
          Widen(op, read->second);
        }
      }
      graph_.ops.push_back(std::move(op));
    }
    if (!at_experts_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "resources.mesh.expert: the model has no experts that ranks can share out; take 1");
  }

 private:
  // Rows that lie where the experts are.
  struct Exchange {
    ops::ExpertRanks who;
    ValueId before = kNoValue;  // the rows as this rank has sent them
    ValueId offsets = kNoValue;
    ValueId segments = kNoValue;
    int64_t rows = 0;  // room for them
  };

  absl::Status Wrong(const Op& op, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.mesh.expert: ", graph_.values[op.outputs[0].value].name, ": ", what));
  }

  ValueId AddLike(ValueId value, const char* suffix) {
    graph::Value like = graph_.values[value];
    absl::StrAppend(&like.name, suffix);
    graph_.values.push_back(std::move(like));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  void Push(Op exchange, const Op& like) {
    exchange.block = like.block;
    exchange.constant = like.constant;
    graph_.ops.push_back(std::move(exchange));
  }

  // Of a kExpertLinear: this rank's weights, and the rows for them.
  absl::Status TakeOwn(Op& op) {
    const int64_t experts = op.attributes.experts.count;
    if (experts % ranks_ != 0) {
      return Wrong(op, absl::StrCat(ranks_, " ranks do not divide ", experts, " experts"));
    }
    if (!at_experts_.contains(op.inputs[0])) MP_RETURN_IF_ERROR(Send(op));
    const Exchange& exchange = at_experts_.at(op.inputs[0]);
    op.inputs[1] = exchange.segments;
    op.attributes.experts.count = experts / ranks_;
    op.attributes.experts.even_rows = graph_.values[exchange.before].shape[0];
    const auto weights = static_cast<int64_t>(op.inputs.size() - kFirstWeight);
    const int64_t first = weights / ranks_ * own_, last = first + weights / ranks_;
    std::vector<ValueId> inputs = {op.inputs[0], op.inputs[1]};
    for (int64_t i = 0; i < weights; ++i) {
      const ValueId weight = op.inputs[kFirstWeight + static_cast<size_t>(i)];
      graph::Parameter& parameter = graph_.parameters[parameters_.at(weight)];
      parameter.of_experts = true;
      parameter.elsewhere = i < first || i >= last;
      if (!parameter.elsewhere) inputs.push_back(weight);
    }
    op.inputs = std::move(inputs);
    return absl::OkStatus();
  }

  // The rows that `op` reads, to the experts.
  absl::Status Send(Op& op) {
    const ValueId before = op.inputs[0];
    const int64_t sent = graph_.values[before].shape[0], per_token = per_token_.at(before);
    Exchange exchange = {.who = {.experts = op.attributes.experts.count, .ranks = ranks_},
                         .before = before,
                         .offsets = op.inputs[1]};
    exchange.rows =
        kernels::MostExpertRows(sent / per_token, per_token, exchange.who.experts, ranks_);
    if (exchange.rows > std::numeric_limits<int32_t>::max()) {
      return Wrong(op, absl::StrCat("up to ", exchange.rows,
                                    " rows at once are too many: choose a smaller "
                                    "train.batch.micro or data.sequence_length"));
    }
    exchange.segments = AddLike(exchange.offsets, " at experts");
    op.inputs[0] = AddLike(before, " at experts");
    graph_.values[op.inputs[0]].shape[0] = exchange.rows;
    Push(ops::ExpertSegmentsOp(exchange.offsets, exchange.segments, exchange.who), op);
    Push(ops::RowsToExpertsOp(before, exchange.offsets, exchange.segments, op.inputs[0],
                              exchange.who),
         op);
    at_experts_[op.inputs[0]] = exchange;
    return absl::OkStatus();
  }

  // What is made of such rows, row by row.
  void Widen(const Op& op, const Exchange& exchange) {
    for (const graph::Output& output : op.outputs) {
      graph_.values[output.value].shape[0] = exchange.rows;
      at_experts_[output.value] = exchange;
    }
  }

  // What experts have made, back at the tokens' rank.
  ValueId ComeBack(const Op& op, const Exchange& exchange) {
    const ValueId back = AddLike(op.inputs[0], " back");
    graph_.values[back].shape[0] = graph_.values[exchange.before].shape[0];
    Push(ops::RowsFromExpertsOp(op.inputs[0], exchange.offsets, exchange.segments, back,
                                exchange.who),
         op);
    return back;
  }

  Graph& graph_;
  const int64_t ranks_;
  const int64_t own_;
  std::map<ValueId, size_t> parameters_;    // by value
  std::map<ValueId, int64_t> per_token_;    // rows of one, by what kDispatchRows makes
  std::map<ValueId, Exchange> at_experts_;  // rows that lie there
};

}  // namespace

absl::Status DivideExperts(graph::Graph& graph, int ranks, int own) {
  return ranks == 1 ? absl::OkStatus() : ExpertsDivider(graph, ranks, own).Run();
}

}  // namespace milepost::plan
