#include "engine/plan/recompute_pass.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

// Norms that first add to the residual stream: outputs are the sum, then those of the plain norm,
// whose inputs are the sum and, from the third on, this op's.
bool IsResidualNorm(OpKind kind) {
  return kind == OpKind::kResidualLayerNorm || kind == OpKind::kResidualRmsNorm;
}

OpKind PlainNorm(OpKind kind) {
  return kind == OpKind::kResidualLayerNorm ? OpKind::kLayerNorm : OpKind::kRmsNorm;
}

// Bound by memory alone: replaying them costs next to nothing beside the matrix products.
bool IsCheap(OpKind kind) {
  return IsResidualNorm(kind) || kind == OpKind::kLayerNorm || kind == OpKind::kRmsNorm ||
         kind == OpKind::kGelu || kind == OpKind::kSwiGlu;
}

class RecomputePass {
 public:
  RecomputePass(graph::Graph& graph, Recompute recompute)
      : graph_(graph),
        recompute_(recompute),
        producer_(graph.values.size(), nullptr),
        again_(graph.values.size(), kNoValue) {}

  void Run() && {
    SplitOps();
    if (forward_.empty()) return;
    graph_.ops = forward_;
    for (Op& op : backward_) {
      for (ValueId& input : op.inputs) input = Again(input, op.block);
      for (graph::Output& output : op.outputs) output.may_overwrite = Now(output.may_overwrite);
      graph_.ops.push_back(std::move(op));
    }
  }

 private:
  void SplitOps() {
    const auto backward = std::find_if(graph_.ops.begin(), graph_.ops.end(), [](const Op& op) {
      return op.phase != graph::Phase::kForward;
    });
    forward_.assign(graph_.ops.begin(), backward);
    backward_.assign(std::make_move_iterator(backward), std::make_move_iterator(graph_.ops.end()));
    int block = graph::kNoBlock;
    for (const Op& op : forward_) {
      for (const graph::Output& output : op.outputs) {
        if (output.value != kNoValue) producer_[output.value] = &op;
      }
      if (op.block != block && IsResidualNorm(op.kind)) {
        taken_up_.insert(op.outputs[0].value);
      }
      block = op.block;
    }
  }

  // Whether a backward op of `block` finds `value` gone.
  bool Dropped(ValueId value, int block) const {
    const Op* producer = producer_[value];
    if (producer == nullptr || producer->block == forward_.back().block) return false;
    if (recompute_ == Recompute::kFull) {
      return producer->block == block && !taken_up_.contains(value);
    }
    // What another block made is kept: making it again would need that block's parameters here.
    const bool is_sum = IsResidualNorm(producer->kind) && producer->outputs[0].value == value;
    return IsCheap(producer->kind) && !is_sum && producer->block == block;
  }

  // `value` as an op of the backward part may read it, made once more where it must be.
  ValueId Again(ValueId value, int block) {
    if (value == kNoValue || value >= static_cast<ValueId>(again_.size())) return value;
    if (again_[value] == kNoValue && Dropped(value, block)) Replay(*producer_[value]);
    return Now(value);
  }

  ValueId Now(ValueId value) const {
    const bool made = value != kNoValue && value < static_cast<ValueId>(again_.size()) &&
                      again_[value] != kNoValue;
    return made ? again_[value] : value;
  }

  void Replay(const Op& forward) {
    Op op = forward;
    op.phase = graph::Phase::kRecompute;
    if (IsResidualNorm(op.kind) && !Dropped(op.outputs[0].value, op.block)) {
      op.kind = PlainNorm(op.kind);
      op.attributes.dropout = 0;  // is in the sum
      op.inputs.erase(op.inputs.begin());
      op.inputs[0] = op.outputs[0].value;
      op.outputs.erase(op.outputs.begin());
    }
    for (ValueId& input : op.inputs) input = Again(input, op.block);
    for (graph::Output& output : op.outputs) {
      if (output.value == kNoValue) continue;
      output.may_overwrite = Now(output.may_overwrite);
      graph::Value value = graph_.values[output.value];
      value.name = absl::StrCat("again ", value.name);
      again_[output.value] = static_cast<ValueId>(graph_.values.size());
      output.value = again_[output.value];
      graph_.values.push_back(std::move(value));
    }
    graph_.ops.push_back(std::move(op));
  }

  graph::Graph& graph_;
  const Recompute recompute_;
  std::vector<Op> forward_;
  std::vector<Op> backward_;
  std::vector<const Op*> producer_;        // by value: the forward op that makes it
  absl::flat_hash_set<ValueId> taken_up_;  // the residual stream at the begin of blocks
  std::vector<ValueId> again_;             // by value: the same, made in the backward
};

}  // namespace

void AddRecompute(graph::Graph& graph, Recompute recompute) {
  if (recompute != Recompute::kNone) RecomputePass(graph, recompute).Run();
}

}  // namespace milepost::plan
