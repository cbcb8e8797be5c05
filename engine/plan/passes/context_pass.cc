#include "engine/plan/passes/context_pass.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/context_parallel/context_parallel.h"

namespace milepost::plan {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

constexpr size_t kPositionTable = 2;  // of kEmbedding

// Of its input's heads each is made alone.
bool GoesByHeads(OpKind kind) { return kind == OpKind::kRope || kind == OpKind::kQkNorm; }

class SequenceDivider {
 public:
  SequenceDivider(Graph& graph, int64_t ranks) : graph_(graph), ranks_(ranks) {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      for (const graph::Output& output : graph.ops[i].outputs) {
        if (output.value != kNoValue) makers_[output.value] = i;
      }
    }
    for (const graph::Parameter& parameter : graph.parameters) parameters_.insert(parameter.value);
  }

  absl::Status Run() && {
    MP_RETURN_IF_ERROR(FindOps());
    for (const ValueId value : whole_) graph_.values[value].shape[0] *= ranks_;
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
    for (size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].kind == OpKind::kRopeTable) ops[i].attributes.sequence *= ranks_;
      if (by_heads_.contains(i)) {
        MP_RETURN_IF_ERROR(AddByHeads(std::move(ops[i]), first_.contains(i)));
      } else {
        graph_.ops.push_back(std::move(ops[i]));
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::string& NameOf(const Op& op) const { return graph_.values[op.outputs[0].value].name; }

  absl::Status Wrong(const Op& op, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.mesh.context: ", NameOf(op), ": ", what));
  }

  // Attention, and what lies in front of it by heads.
  absl::Status FindOps() {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      if (graph_.ops[i].kind != OpKind::kAttention) continue;
      size_t first = i;
      while (true) {
        by_heads_.insert(first);
        FindWhole(graph_.ops[first]);
        const auto maker = makers_.find(graph_.ops[first].inputs[0]);
        if (maker == makers_.end() || !GoesByHeads(graph_.ops[maker->second].kind)) break;
        first = maker->second;
      }
      first_.insert(first);
    }
    if (by_heads_.empty()) {
      return absl::InvalidArgumentError(
          "resources.mesh.context: the model has no attention, whose heads ranks can divide; "
          "take 1");
    }
    return CheckOthers();
  }

  // What is read there beside the heads, by position: tables and inputs.
  void FindWhole(const Op& op) {
    for (size_t i = 1; i < op.inputs.size(); ++i) {
      const bool rows = op.inputs[i] != kNoValue && !parameters_.contains(op.inputs[i]);
      if (rows) whole_.insert(op.inputs[i]);
    }
  }

  // Nothing else needs the whole of a sequence.
  absl::Status CheckOthers() const {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (by_heads_.contains(i)) continue;
      for (const ValueId input : op.inputs) {
        if (!whole_.contains(input)) continue;
        return Wrong(op, absl::StrCat("reads ", graph_.values[input].name,
                                      " of a rank's tokens, attention that of all"));
      }
      const bool learned = op.kind == OpKind::kEmbedding && op.inputs[kPositionTable] != kNoValue;
      if (!learned) continue;
      const int64_t positions = graph_.values[op.inputs[kPositionTable]].shape[0];
      const int64_t needed = op.attributes.sequence * ranks_;
      if (positions >= needed) continue;
      return Wrong(op, absl::StrCat("sequences of ", needed, " tokens are longer than the ",
                                    positions, " positions"));
    }
    return absl::OkStatus();
  }

  absl::Status AddByHeads(Op op, bool first) {
    graph::Attributes& a = op.attributes;
    const kernels::HeadsExchangeShape shape = ShapeOf(a);
    graph::Attributes by_tokens = a;
    by_tokens.query_parts = shape.query_parts;
    a.sequence *= ranks_;
    a.heads = shape.OwnHeads();
    a.kv_heads = shape.OwnKvHeads();
    const ValueId x = op.inputs[0];
    const int64_t heads = HeadsOf(a);
    const int64_t width = graph_.values[x].shape[1] / (first ? HeadsOf(by_tokens) : heads);
    if (first) {
      op.inputs[0] = ByHeads(x, heads * width);
      for (graph::Output& output : op.outputs) {
        if (output.may_overwrite == x) output.may_overwrite = op.inputs[0];
      }
      Push(ops::TokensToHeadsOp(x, op.inputs[0], by_tokens), op);
    }
    if (op.kind != OpKind::kAttention) {
      Widen(heads * width, graph_.values[op.outputs[0].value]);
      graph_.ops.push_back(std::move(op));
      return absl::OkStatus();
    }
    a.query_parts = shape.query_parts;
    if (op.outputs[1].value != kNoValue) {  // f32[B,H,T]
      graph::Shape& lse = graph_.values[op.outputs[1].value].shape;
      lse[1] = a.heads;
      lse[2] *= ranks_;
    }
    const ValueId out = op.outputs[0].value;
    op.outputs[0].value = ByHeads(out, a.heads * width);
    const Op back = ops::HeadsToTokensOp(op.outputs[0].value, out, by_tokens);
    graph_.ops.push_back(op);
    Push(back, op);
    return absl::OkStatus();
  }

  void Push(Op exchange, const Op& like) {
    exchange.block = like.block;
    exchange.constant = like.constant;
    graph_.ops.push_back(std::move(exchange));
  }

  static int64_t HeadsOf(const graph::Attributes& a) { return a.heads + 2 * a.kv_heads; }

  kernels::HeadsExchangeShape ShapeOf(const graph::Attributes& a) const {
    kernels::HeadsExchangeShape shape = {.ranks = ranks_, .heads = a.heads, .kv_heads = a.kv_heads};
    shape.query_parts = QueryParts(shape);
    return shape;
  }

  void Widen(int64_t width, graph::Value& value) const {
    value.shape[0] *= ranks_;
    value.shape[1] = width;
  }

  // A new value: the same, with all tokens of a rank's heads.
  ValueId ByHeads(ValueId by_tokens, int64_t width) {
    graph::Value value = graph_.values[by_tokens];
    absl::StrAppend(&value.name, " by heads");
    Widen(width, value);
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  Graph& graph_;
  const int64_t ranks_;
  std::map<ValueId, size_t> makers_;  // ops, by what they make
  std::set<ValueId> parameters_;
  std::set<size_t> by_heads_;  // ops
  std::set<size_t> first_;     // of these, those that read what is made by tokens
  std::set<ValueId> whole_;    // tables and inputs with rows for all tokens
};

}  // namespace

absl::Status DivideSequences(Graph& graph, int ranks) {
  return ranks == 1 ? absl::OkStatus() : SequenceDivider(graph, ranks).Run();
}

}  // namespace milepost::plan
