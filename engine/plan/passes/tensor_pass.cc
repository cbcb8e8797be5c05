#include "engine/plan/passes/tensor_pass.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/ops/tensor_parallel/tensor_parallel.h"
#include "engine/plan/passes/vocabulary_pass.h"

namespace milepost::plan {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

// What tensor ranks divide together: op `first`, the ops between, and `last`, by index.
struct DividedLayers {
  size_t first = 0;
  std::vector<size_t> between;
  std::vector<size_t> last;
  // Of attention with fewer heads of keys than ranks: so many neighbours have the same one.
  int64_t sharers = 1;
};

// A layer of experts: what makes its rows, what is divided, and what adds up a token's experts.
struct DividedExperts {
  size_t route = 0, dispatch = 0;
  size_t first = 0;
  std::vector<size_t> between;
  size_t last = 0, combine = 0;
};

// A part of its columns can be computed of the same part of its input's.
bool GoesByColumns(OpKind kind) {
  switch (kind) {
    case OpKind::kGelu:
    case OpKind::kSwiGlu:
    case OpKind::kGeGlu:
    case OpKind::kRope:
    case OpKind::kQkNorm:
    case OpKind::kAttention:
      return true;
    default:
      return false;
  }
}

class LayerDivider {
 public:
  LayerDivider(Graph& graph, int64_t ranks) : graph_(graph), ranks_(ranks) {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      for (const ValueId input : graph.ops[i].inputs) {
        if (input != kNoValue) readers_[input].push_back(i);
      }
      for (const graph::Output& output : graph.ops[i].outputs) {
        if (output.value != kNoValue) makers_[output.value] = i;
      }
    }
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      parameters_[graph.parameters[i].value] = i;
    }
  }

  absl::Status Run() && {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      if (graph_.ops[i].kind == OpKind::kDispatchRows) {
        MP_ASSIGN_OR_RETURN(const DividedExperts experts, FindExperts(i));
        MP_RETURN_IF_ERROR(Divide(experts));
      }
      if (graph_.ops[i].kind != OpKind::kLinear || rows_.contains(i)) continue;
      std::optional<DividedLayers> layers = Find(i);
      if (!layers.has_value()) continue;
      layers->sharers = SharersOf(*layers);
      MP_RETURN_IF_ERROR(Divide(*layers));
    }
    if (rows_.empty()) {
      return absl::InvalidArgumentError(
          "resources.mesh.tensor: the model has no layers that ranks can divide; take 1");
    }
    AddSums();
    return absl::OkStatus();
  }

 private:
  const std::string& NameOf(size_t op) const {
    return graph_.values[graph_.ops[op].outputs[0].value].name;
  }

  // Nothing where the layer's output goes anywhere else.
  std::optional<DividedLayers> Find(size_t first) const {
    DividedLayers layers{.first = first};
    std::vector<ValueId> open = {graph_.ops[first].outputs[0].value};
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      const auto readers = readers_.find(value);
      if (readers == readers_.end()) continue;  // what only the backward reads
      for (const size_t reader : readers->second) {
        const Op& op = graph_.ops[reader];
        if (op.inputs[0] != value) return std::nullopt;
        if (op.kind == OpKind::kLinear && op.attributes.parts == 1) {
          layers.last.push_back(reader);
        } else if (GoesByColumns(op.kind)) {
          layers.between.push_back(reader);
          for (const graph::Output& output : op.outputs) {
            if (output.value != kNoValue) open.push_back(output.value);
          }
        } else {
          return std::nullopt;
        }
      }
    }
    return layers.last.empty() ? std::nullopt : std::make_optional(std::move(layers));
  }

  // Keys and values have weights of their own there.
  int64_t SharersOf(const DividedLayers& layers) const {
    if (graph_.ops[layers.first].attributes.parts == 1) return 1;
    for (const size_t i : layers.between) {
      const Op& op = graph_.ops[i];
      if (op.kind != OpKind::kAttention || op.attributes.kv_heads >= ranks_) continue;
      if (ranks_ % op.attributes.kv_heads == 0) return ranks_ / op.attributes.kv_heads;
    }
    return 1;
  }

  absl::Status Divide(const DividedLayers& layers) {
    MP_RETURN_IF_ERROR(DivideColumns(layers));
    for (const size_t i : layers.between) MP_RETURN_IF_ERROR(DivideBetween(i, layers.sharers));
    for (const size_t i : layers.last) {
      Op& op = graph_.ops[i];
      op.attributes.divided = true;
      MP_RETURN_IF_ERROR(DivideParameter(i, op.inputs[1], op.attributes.transposed ? 1 : 0, 1,
                                         /*sharers=*/1));
      rows_.insert(i);
    }
    return absl::OkStatus();
  }

  // The op that alone reads what op `i` makes first.
  absl::StatusOr<size_t> ReaderOf(size_t i) const {
    const auto readers = readers_.find(graph_.ops[i].outputs[0].value);
    if (readers != readers_.end() && readers->second.size() == 1) return readers->second[0];
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.mesh.tensor: ", NameOf(i), " is read by no op alone: it cannot be divided"));
  }

  // Behind op `dispatch` come two layers of experts, and what adds up what they make.
  absl::StatusOr<DividedExperts> FindExperts(size_t dispatch) const {
    DividedExperts experts = {.route = makers_.at(graph_.ops[dispatch].inputs[1]),
                              .dispatch = dispatch};
    MP_ASSIGN_OR_RETURN(experts.first, ReaderOf(dispatch));
    MP_ASSIGN_OR_RETURN(size_t next, ReaderOf(experts.first));
    while (GoesByColumns(graph_.ops[next].kind)) {
      experts.between.push_back(next);
      MP_ASSIGN_OR_RETURN(next, ReaderOf(next));
    }
    experts.last = next;
    MP_ASSIGN_OR_RETURN(experts.combine, ReaderOf(next));
    if (graph_.ops[experts.first].kind == OpKind::kExpertLinear &&
        graph_.ops[experts.last].kind == OpKind::kExpertLinear &&
        graph_.ops[experts.combine].kind == OpKind::kCombineRows) {
      return experts;
    }
    return absl::InvalidArgumentError(absl::StrCat("resources.mesh.tensor: ", NameOf(dispatch),
                                                   ": these are no experts of two layers"));
  }

  // As of a dense layer. What a rank makes of the gradients of what is routed is a part too, of the
  // rows and of the router's logits.
  absl::Status Divide(const DividedExperts& experts) {
    for (const size_t i : {experts.route, experts.dispatch, experts.first}) {
      graph_.ops[i].attributes.divides_columns = true;
    }
    for (const size_t i : {experts.first, experts.last}) {
      Op& op = graph_.ops[i];
      op.attributes.divided = true;
      for (size_t w = 2; w < op.inputs.size(); ++w) {
        MP_RETURN_IF_ERROR(
            DivideParameter(i, op.inputs[w], i == experts.first ? 0 : 1, 1, /*sharers=*/1));
      }
    }
    Op& first = graph_.ops[experts.first];
    MP_RETURN_IF_ERROR(
        DivideDimension(experts.first, graph_.values[first.outputs[0].value].shape[1], ranks_));
    for (const size_t i : experts.between) MP_RETURN_IF_ERROR(DivideBetween(i, /*sharers=*/1));
    graph_.ops[experts.combine].attributes.divided = true;
    rows_.insert(experts.combine);
    return absl::OkStatus();
  }

  // Equal pieces that lie side by side in one weight's columns, each of which is divided.
  absl::StatusOr<int64_t> PiecesOf(const DividedLayers& layers) const {
    if (graph_.ops[layers.first].attributes.parts > 1) return 1;  // a weight for each
    for (const size_t i : layers.between) {
      const Op& op = graph_.ops[i];
      if (op.kind == OpKind::kSwiGlu || op.kind == OpKind::kGeGlu) return 2;
      if (op.kind != OpKind::kAttention) continue;
      if (op.attributes.heads == op.attributes.kv_heads) return 3;
      return absl::InvalidArgumentError(
          absl::StrCat("resources.mesh.tensor: ", NameOf(layers.first),
                       ": heads of queries and of keys in one weight cannot be divided"));
    }
    return 1;
  }

  absl::Status DivideColumns(const DividedLayers& layers) {
    MP_ASSIGN_OR_RETURN(const int64_t pieces, PiecesOf(layers));
    Op& op = graph_.ops[layers.first];
    op.attributes.divided = true;
    op.attributes.divides_columns = true;
    int64_t columns = 0;
    for (size_t i = 1; i < op.inputs.size(); ++i) {
      const int64_t part = static_cast<int64_t>(i - 1) % op.attributes.parts;
      const bool bias = static_cast<int64_t>(i) > op.attributes.parts;
      const int axis = bias || op.attributes.transposed ? 0 : 1;
      const int64_t sharers = part > 0 ? layers.sharers : 1;  // behind the queries
      MP_RETURN_IF_ERROR(DivideParameter(layers.first, op.inputs[i], axis, pieces, sharers));
      if (!bias) columns += graph_.values[op.inputs[i]].shape[static_cast<size_t>(axis)];
    }
    graph_.values[op.outputs[0].value].shape[1] = columns;
    return absl::OkStatus();
  }

  absl::Status DivideBetween(size_t i, int64_t sharers) {
    Op& op = graph_.ops[i];
    op.attributes.divided = true;
    if (op.kind == OpKind::kQkNorm) {  // one gamma for all heads, of which a rank has some
      for (const size_t gamma : {1, 2}) Partial(op.inputs[gamma]);
    }
    const bool with_keys = op.kind == OpKind::kRope || op.kind == OpKind::kQkNorm;
    const int64_t all = op.attributes.heads + 2 * op.attributes.kv_heads;
    if (op.kind == OpKind::kAttention || with_keys) {
      MP_RETURN_IF_ERROR(DivideDimension(i, op.attributes.kv_heads, ranks_ / sharers));
      MP_RETURN_IF_ERROR(DivideDimension(i, op.attributes.heads, ranks_));
    }
    // Attention's second output has a row for each head.
    for (const graph::Output& output : op.outputs) {
      if (output.value == kNoValue) continue;
      int64_t& columns = graph_.values[output.value].shape[1];
      if (with_keys) {
        columns = columns / all * (op.attributes.heads + 2 * op.attributes.kv_heads);
      } else {
        MP_RETURN_IF_ERROR(DivideDimension(i, columns, ranks_));
      }
    }
    return absl::OkStatus();
  }

  void Partial(ValueId parameter) { graph_.parameters[parameters_.at(parameter)].partial = true; }

  absl::Status DivideDimension(size_t op, int64_t& size, int64_t among) const {
    if (size % among != 0) {
      return absl::InvalidArgumentError(absl::StrCat("resources.mesh.tensor: ", NameOf(op), ": ",
                                                     among, " does not divide ", size));
    }
    size /= among;
    return absl::OkStatus();
  }

  // `pieces` that lie side by side along the axis are each divided. `sharers` ranks have the same.
  absl::Status DivideParameter(size_t op, ValueId value, int axis, int64_t pieces,
                               int64_t sharers) {
    graph::Parameter& parameter = graph_.parameters[parameters_.at(value)];
    graph::Shape& shape = graph_.values[value].shape;
    if (!parameter.division.whole()) {
      return absl::InvalidArgumentError(absl::StrCat("resources.mesh.tensor: ", NameOf(op), ": ",
                                                     graph_.values[value].name,
                                                     " is shared with another layer"));
    }
    parameter.undivided.assign(shape.begin(), shape.end());
    int64_t inner = 1;
    for (size_t i = static_cast<size_t>(axis) + 1; i < shape.size(); ++i) inner *= shape[i];
    MP_CHECK(sharers == 1 || axis == 0) << "shared columns";  // they would lie in several runs
    const int64_t among = ranks_ / sharers;
    int64_t piece = shape[axis] / pieces;
    MP_RETURN_IF_ERROR(DivideDimension(op, piece, among));
    shape[axis] = piece * pieces;
    parameter.division = {
        .run = piece * inner, .period = piece * inner * among, .sharers = sharers};
    if (sharers > 1) Partial(value);
    return absl::OkStatus();
  }

  // Behind each layer whose rows are divided: the sum, by the layer's name, with its bias.
  void AddSums() {
    std::vector<Op> ops;
    ops.reserve(graph_.ops.size() + rows_.size());
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      ops.push_back(std::move(graph_.ops[i]));
      if (!rows_.contains(i)) continue;
      Op& layer = ops.back();
      const ValueId sum = layer.outputs[0].value;
      const ValueId part = static_cast<ValueId>(graph_.values.size());
      graph::Value value = graph_.values[sum];
      absl::StrAppend(&value.name, " of a tensor rank");
      graph_.values.push_back(std::move(value));
      layer.outputs[0].value = part;
      ValueId bias = kNoValue;
      if (layer.kind == OpKind::kLinear && layer.inputs.size() > 2) {
        bias = layer.inputs[2];
        layer.inputs.resize(2);
      }
      Op reduce = ops::TensorReduceOp(part, kNoValue, bias, sum);
      reduce.block = layer.block;
      reduce.constant = layer.constant;
      ops.push_back(std::move(reduce));
    }
    graph_.ops = std::move(ops);
  }

  Graph& graph_;
  const int64_t ranks_;
  absl::flat_hash_map<ValueId, absl::InlinedVector<size_t, 2>> readers_;  // ops, by what they read
  absl::flat_hash_map<ValueId, size_t> makers_;                           // ops, by what they make
  absl::flat_hash_map<ValueId, size_t> parameters_;                       // by value
  std::set<size_t> rows_;  // layers whose rows are divided, or what combines those of experts
};

}  // namespace

absl::Status DivideLayers(Graph& graph, int ranks) {
  if (ranks == 1) return absl::OkStatus();
  MP_RETURN_IF_ERROR(LayerDivider(graph, ranks).Run());
  DivideVocabulary(graph, ranks);
  return absl::OkStatus();
}

}  // namespace milepost::plan
