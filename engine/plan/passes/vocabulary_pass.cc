#include "engine/plan/passes/vocabulary_pass.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/round_up.h"
#include "engine/ops/classifier/classifier_contract.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/tensor_parallel/tensor_parallel.h"

namespace milepost::plan {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

// Of kEmbedding and of kLmHeadLoss.
constexpr size_t kTable = 1;
constexpr size_t kHeadBias = 3;

class VocabularyDivider {
 public:
  VocabularyDivider(Graph& graph, int64_t ranks) : graph_(graph), ranks_(ranks) {
    for (graph::Parameter& parameter : graph.parameters) {
      parameters_[parameter.value] = &parameter;
    }
  }

  void Run() && {
    FindTables();
    if (tables_.empty()) return;
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
    for (Op& op : ops) {
      const bool reads = op.inputs.size() > kTable && tables_.contains(op.inputs[kTable]);
      if (reads && op.kind == OpKind::kEmbedding) {
        AddEmbedding(std::move(op));
      } else if (reads && op.kind == OpKind::kLmHeadLoss) {
        AddHead(std::move(op));
      } else {
        graph_.ops.push_back(std::move(op));
      }
    }
    for (const auto& [table, vocabulary] : tables_) DivideRows(table);
    for (const ValueId bias : biases_) DivideRows(bias);
  }

 private:
  // Whole parameters that embeddings read, and heads with as many rows: by nothing else.
  void FindTables() {
    std::set<int64_t> vocabularies;
    for (const Op& op : graph_.ops) {
      if (op.kind == OpKind::kEmbedding) vocabularies.insert(RowsOf(op.inputs[kTable]));
    }
    for (const Op& op : graph_.ops) {
      if (op.kind != OpKind::kEmbedding && op.kind != OpKind::kLmHeadLoss) continue;
      const ValueId table = op.inputs[kTable];
      const auto parameter = parameters_.find(table);
      if (parameter == parameters_.end() || !parameter->second->division.whole()) continue;
      if (vocabularies.contains(RowsOf(table))) tables_[table] = RowsOf(table);
    }
    for (const Op& op : graph_.ops) {
      const bool knows = op.kind == OpKind::kEmbedding || op.kind == OpKind::kLmHeadLoss;
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        if (!knows || i != kTable) tables_.erase(op.inputs[i]);
      }
    }
  }

  int64_t RowsOf(ValueId table) const { return graph_.values[table].shape[0]; }

  ValueId NewValue(graph::Value value, const std::string& name) {
    value.name = name;
    value.kind = graph::ValueKind::kActivation;
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  void Mark(Op& op) const {
    op.attributes.divided = true;
    op.attributes.vocabulary = tables_.at(op.inputs[kTable]);
  }

  void Push(Op op, const Op& like) {
    op.block = like.block;
    op.constant = true;  // the gradient goes another way
    graph_.ops.push_back(std::move(op));
  }

  void AddEmbedding(Op op) {
    Mark(op);
    const graph::Value out = graph_.values[op.outputs[0].value];
    const ValueId part = NewValue(out, absl::StrCat(out.name, " rows of a tensor rank"));
    const ValueId rows = NewValue(out, absl::StrCat(out.name, " rows"));
    Push(ops::TokenRowsOp(op, part), op);
    Push(ops::TensorReduceOp(part, kNoValue, kNoValue, rows), op);
    op.inputs.push_back(rows);
    op.outputs[0].may_overwrite = rows;
    graph_.ops.push_back(std::move(op));
  }

  void AddHead(Op op) {
    Mark(op);
    const graph::Value x = graph_.values[op.inputs[0]];
    const std::string& name = graph_.losses[op.attributes.head].name;
    const int64_t rows = x.shape[0];
    graph::Attributes& a = op.attributes;
    if (!a.gathers) a.chunk_rows = ChunkRows(rows, a.chunk_rows);
    graph::Value parts = {.dtype = DType::kF32, .shape = {rows, kernels::kLogitsPartFloats}};
    parts.block = x.block;
    const ValueId own = NewValue(parts, absl::StrCat(name, " parts of a tensor rank"));
    parts.shape.insert(parts.shape.begin(), ranks_);
    const ValueId all = NewValue(parts, absl::StrCat(name, " parts"));
    ValueId logits = kNoValue;
    if (!a.gathers && a.chunk_rows == rows) {
      graph::Value kept = x;
      kept.shape = {rows, VocabularyRows(a.vocabulary, ranks_)};
      logits = NewValue(kept, absl::StrCat(name, " logits of a tensor rank"));
    }
    Push(ops::LmHeadPartsOp(op, own, logits), op);
    Push(ops::TensorGatherOp(own, all), op);
    if (op.inputs[kHeadBias] != kNoValue) biases_.insert(op.inputs[kHeadBias]);
    op.inputs.push_back(all);
    if (logits != kNoValue) op.inputs.push_back(logits);
    graph_.ops.push_back(std::move(op));
  }

  // As many bytes of logits as one rank has at once.
  int64_t ChunkRows(int64_t rows, int64_t of_one_rank) const {
    const int64_t most = std::min(rows, of_one_rank * ranks_);
    return std::min(rows, RoundUp(CeilDiv(rows, CeilDiv(rows, most)), 16));
  }

  void DivideRows(ValueId value) {
    graph::Parameter& parameter = *parameters_.at(value);
    graph::Shape& shape = graph_.values[value].shape;
    parameter.undivided.assign(shape.begin(), shape.end());
    shape[0] = VocabularyRows(shape[0], ranks_);
    const int64_t own = graph::Elements(shape);
    parameter.division = {.run = own, .period = own * ranks_};
  }

  Graph& graph_;
  const int64_t ranks_;
  absl::flat_hash_map<ValueId, graph::Parameter*> parameters_;  // by value
  std::map<ValueId, int64_t> tables_;  // that are divided: their vocabularies
  std::set<ValueId> biases_;           // of heads over them
};

}  // namespace

int64_t VocabularyRows(int64_t vocabulary, int64_t ranks) {
  constexpr int64_t kAligned = 8;
  return RoundUp(CeilDiv(vocabulary, ranks), kAligned);
}

void DivideVocabulary(Graph& graph, int64_t ranks) { VocabularyDivider(graph, ranks).Run(); }

}  // namespace milepost::plan
