#include "engine/plan/passes/rows_pass.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "engine/ops/tensor_parallel/tensor_parallel.h"

namespace milepost::plan {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

// Each row of what it makes is made of the same rows of what it reads.
bool GoesByRows(OpKind kind) {
  switch (kind) {
    case OpKind::kLayerNorm:
    case OpKind::kResidualLayerNorm:
    case OpKind::kRmsNorm:
    case OpKind::kResidualRmsNorm:
    case OpKind::kAdd:
    case OpKind::kScale:
    case OpKind::kDropout:
      return true;
    default:
      return false;
  }
}

class RowDivider {
 public:
  RowDivider(Graph& graph, int64_t ranks, int64_t rows)
      : graph_(graph), ranks_(ranks), rows_(rows) {
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      parameters_[graph.parameters[i].value] = i;
    }
    for (const Op& op : graph.ops) {
      if (!GoesByRows(op.kind)) read_whole_.insert(op.inputs.begin(), op.inputs.end());
    }
  }

  void Run() && {
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
    graph_.ops.reserve(2 * ops.size());
    for (Op& op : ops) {
      if (op.kind == OpKind::kTensorReduce && !op.constant) {
        Scatter(std::move(op));
      } else if (GoesByRows(op.kind) && ReadsOwnRows(op)) {
        Divide(std::move(op));
      } else {
        Keep(std::move(op));
      }
    }
  }

 private:
  bool HasRows(ValueId value) const {
    return value != kNoValue && !parameters_.contains(value) &&
           graph_.values[value].shape[0] == rows_;
  }
  bool IsOwn(ValueId value) const { return all_.contains(value); }

  bool ReadsOwnRows(const Op& op) const {
    bool any = false;
    for (const ValueId input : op.inputs) {
      if (input == kNoValue || parameters_.contains(input)) continue;
      if (!IsOwn(input) && !HasRows(input)) return false;
      any |= IsOwn(input) || own_.contains(input);
    }
    return any;
  }

  ValueId NewValue(ValueId like, absl::string_view suffix, int64_t rows) {
    graph::Value value = graph_.values[like];
    absl::StrAppend(&value.name, suffix);
    value.kind = graph::ValueKind::kActivation;
    value.shape[0] = rows;
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  void Push(Op op, int block) {
    op.block = block;
    graph_.ops.push_back(std::move(op));
  }

  // This rank's rows of a value that all ranks have.
  ValueId OwnOf(ValueId value, int block) {
    if (!own_.contains(value)) {
      own_[value] = NewValue(value, " rows of a tensor rank", rows_ / ranks_);
      all_[own_[value]] = value;
      Push(ops::TensorRowsOp(value, own_[value]), block);
    }
    return own_[value];
  }

  // All rows of a value of which this rank has some.
  ValueId AllOf(ValueId value, int block) {
    ValueId& all = all_[value];
    if (all == kNoValue) {
      all = NewValue(value, " of all tensor ranks", rows_);
      Push(ops::TensorGatherRowsOp(value, all), block);
    }
    return all;
  }

  // Each rank makes a part of the gradients of what the op reads of parameters.
  void Divided(Op op) {
    op.attributes.divided = true;
    op.attributes.divides_rows = true;
    for (const ValueId input : op.inputs) {
      const auto parameter = parameters_.find(input);
      if (parameter != parameters_.end()) graph_.parameters[parameter->second].partial = true;
    }
    for (const graph::Output& output : op.outputs) {
      if (output.value == kNoValue) continue;
      graph_.values[output.value].shape[0] = rows_ / ranks_;
      all_[output.value] = kNoValue;
    }
    graph_.ops.push_back(std::move(op));
  }

  // Of the sum of a divided layer.
  void Scatter(const Op& op) {
    Op scatter = ops::TensorScatterOp(op.inputs[0], op.inputs[2], op.outputs[0].value);
    scatter.block = op.block;
    Divided(std::move(scatter));
  }

  void Divide(Op op) {
    for (ValueId& input : op.inputs) {
      if (IsOwn(input) || !HasRows(input)) continue;
      const ValueId own = OwnOf(input, op.block);
      for (graph::Output& output : op.outputs) {
        if (output.may_overwrite == input) output.may_overwrite = own;
      }
      input = own;
    }
    Divided(std::move(op));
  }

  // An op that has all rows.
  void Keep(Op op) {
    for (ValueId& input : op.inputs) {
      if (input == kNoValue || !IsOwn(input)) continue;
      const ValueId all = AllOf(input, op.block);
      for (graph::Output& output : op.outputs) {
        if (output.may_overwrite == input) output.may_overwrite = kNoValue;
      }
      input = all;
    }
    const int block = op.block;
    const ValueId whole = op.kind == OpKind::kEmbedding ? op.outputs[0].value : kNoValue;
    graph_.ops.push_back(std::move(op));
    // In the embedding's block: a stage hands on a rank's own rows. Where another op reads all of
    // them, own ones are taken by their first reader: that op adds to their gradient.
    if (HasRows(whole) && !read_whole_.contains(whole)) OwnOf(whole, block);
  }

  Graph& graph_;
  const int64_t ranks_;
  const int64_t rows_;
  absl::flat_hash_map<ValueId, size_t> parameters_;  // by value
  absl::flat_hash_set<ValueId> read_whole_;          // by ops that do not go by rows
  absl::flat_hash_map<ValueId, ValueId> own_;        // of a value of all rows: this rank's
  absl::flat_hash_map<ValueId, ValueId> all_;        // the other way round; kNoValue: not yet
};

// Of the sums of divided layers; 0: there are none.
int64_t RowsOf(const Graph& graph) {
  for (const Op& op : graph.ops) {
    const bool sum = op.kind == OpKind::kTensorReduce && !op.constant;
    if (sum) return graph.values[op.outputs[0].value].shape[0];
  }
  return 0;
}

class SumJoiner {
 public:
  explicit SumJoiner(Graph& graph) : graph_(graph) {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      const Op& op = graph.ops[i];
      for (const ValueId input : op.inputs) {
        if (input != kNoValue) readers_[input].push_back(i);
      }
      for (const graph::Output& output : op.outputs) {
        if (output.value != kNoValue) makers_.emplace(output.value, i);
      }
    }
  }

  void Run() && {
    absl::flat_hash_set<size_t> gone;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const size_t rows = RowsOfSum(i);
      if (rows == 0) continue;
      Join(graph_.ops[i], graph_.ops[rows]);
      gone.insert(rows);
    }
    size_t index = 0;
    std::erase_if(graph_.ops, [&](const Op&) { return gone.contains(index++); });
  }

 private:
  // The op that alone reads the sum of op `i`, and takes some of its rows; 0: there is none.
  size_t RowsOfSum(size_t i) const {
    const Op& sum = graph_.ops[i];
    if (sum.kind != OpKind::kTensorReduce || sum.inputs[1] != kNoValue) return 0;
    const auto readers = readers_.find(sum.outputs[0].value);
    if (readers == readers_.end() || readers->second.size() != 1) return 0;
    const size_t reader = readers->second[0];
    const Op& rows = graph_.ops[reader];
    if (rows.kind != OpKind::kTensorRows) return 0;
    const ValueId added = rows.inputs[1];
    return added == kNoValue || makers_.at(added) < i ? reader : 0;
  }

  static void Join(Op& sum, const Op& rows) {
    sum.kind = OpKind::kTensorScatter;
    sum.inputs[1] = rows.inputs[1];
    sum.outputs = {rows.outputs[0]};
    sum.attributes.divides_rows = true;
  }

  Graph& graph_;
  absl::flat_hash_map<ValueId, absl::InlinedVector<size_t, 2>> readers_;
  absl::flat_hash_map<ValueId, size_t> makers_;  // the first
};

}  // namespace

void DivideRows(Graph& graph, int64_t ranks, const RowsOfSamples& rows) {
  const int64_t all = RowsOf(graph);
  if (ranks == 1 || all == 0 || all % ranks != 0) return;
  const int64_t own = all / ranks;
  const bool even = own % rows.sequence == 0 || rows.sequence % own == 0;
  if (rows.context > 1 && !even) return;
  RowDivider(graph, ranks, all).Run();
}

void JoinSumsAndRows(Graph& graph) { SumJoiner(graph).Run(); }

}  // namespace milepost::plan
