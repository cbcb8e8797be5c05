#include "engine/plan/passes/recompute_pass.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/ops/norm/norm.h"
#include "engine/ops/op_definition.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

bool IsResidualNorm(OpKind kind) { return ops::DefinitionOf(kind).after_sum != graph::kNoOpKind; }

bool IsCheap(const Op& op) { return ops::DefinitionOf(op.kind).cheap(op); }

class RecomputePass {
 public:
  RecomputePass(graph::Graph& graph, const std::vector<Recompute>& by_block)
      : graph_(graph),
        by_block_(by_block),
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
    for (const Op& op : backward_) {
      for (ValueId input : op.inputs) {
        const bool forward = input != kNoValue && producer_[input] != nullptr;
        if (forward && producer_[input]->block != op.block) taken_up_.insert(input);
      }
    }
  }

  Recompute LevelOf(int block) const {
    return block >= 0 && block < static_cast<int>(by_block_.size()) ? by_block_[block]
                                                                    : Recompute::kNone;
  }

  // Whether a backward op of `block` finds `value` gone.
  bool Dropped(ValueId value, int block) const {
    const Op* producer = producer_[value];
    if (producer == nullptr || producer->block == forward_.back().block) return false;
    if (ops::DefinitionOf(producer->kind).once) return false;
    const Recompute recompute = LevelOf(producer->block);
    if (recompute == Recompute::kNone) return false;
    if (recompute == Recompute::kFull) {
      return producer->block == block && !taken_up_.contains(value);
    }
    // What another block made is kept: making it again would need that block's parameters here.
    const bool is_sum = IsResidualNorm(producer->kind) && producer->outputs[0].value == value;
    return IsCheap(*producer) && !is_sum && producer->block == block;
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
    // The sum is still there.
    if (IsResidualNorm(op.kind) && !Dropped(op.outputs[0].value, op.block)) ops::LeaveOutSum(op);
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
  const std::vector<Recompute>& by_block_;
  std::vector<Op> forward_;
  std::vector<Op> backward_;
  std::vector<const Op*> producer_;  // by value: the forward op that makes it
  // What is there anyway: the residual stream at the begin of blocks, and what the backward of
  // another block reads. Not by kSelective.
  absl::flat_hash_set<ValueId> taken_up_;
  std::vector<ValueId> again_;  // by value: the same, made in the backward
};

// The block of the forward op that makes each value; kNoBlock: none does.
std::vector<int> MadeBy(const graph::Graph& graph) {
  std::vector<int> made_by(graph.values.size(), graph::kNoBlock);
  for (const Op& op : graph.ops) {
    if (op.phase != graph::Phase::kForward) continue;
    for (const graph::Output& output : op.outputs) {
      if (output.value != kNoValue) made_by[output.value] = op.block;
    }
  }
  return made_by;
}

}  // namespace

void AddRecompute(graph::Graph& graph, const std::vector<Recompute>& by_block) {
  const bool any = std::any_of(by_block.begin(), by_block.end(),
                               [](Recompute level) { return level != Recompute::kNone; });
  if (any) RecomputePass(graph, by_block).Run();
}

std::vector<int64_t> KeptBytes(const graph::Graph& graph) {
  std::vector<int> made_by = MadeBy(graph);
  std::vector<int64_t> bytes(graph.blocks.size(), 0);
  for (const Op& op : graph.ops) {
    if (op.phase == graph::Phase::kForward) continue;
    for (ValueId input : op.inputs) {
      if (input == kNoValue || made_by[input] == graph::kNoBlock) continue;
      const graph::Value& value = graph.values[input];
      if (value.kind == graph::ValueKind::kActivation) {
        bytes[made_by[input]] += graph::Elements(value.shape) * ByteSize(value.dtype);
      }
      made_by[input] = graph::kNoBlock;  // counted
    }
  }
  return bytes;
}

}  // namespace milepost::plan
