#include "engine/plan/passes/micro_batch_copies.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;
using graph::ValueKind;

MicroBatchCopies::MicroBatchCopies(graph::Graph& graph) : graph_(graph), inputs_(graph.inputs) {
  FindShared();
}

void MicroBatchCopies::FindShared() {
  shared_.resize(graph_.values.size());
  for (size_t id = 0; id < graph_.values.size(); ++id) {
    const ValueKind kind = graph_.values[id].kind;
    shared_[id] = kind == ValueKind::kParameter || kind == ValueKind::kParameterGradient ||
                  kind == ValueKind::kStepAccumulator;
  }
  for (Op& op : std::exchange(graph_.ops, {})) {
    const bool reads = std::any_of(op.inputs.begin(), op.inputs.end(),
                                   [](ValueId input) { return input != kNoValue; });
    const bool once =
        op.phase == graph::Phase::kForward && !reads && op.kind != OpKind::kStageReceive;
    if (!once) {
      ops_.push_back(std::move(op));
      continue;
    }
    for (const graph::Output& output : op.outputs) {
      if (output.value != kNoValue) shared_[output.value] = true;
    }
    graph_.ops.push_back(std::move(op));
  }
}

void MicroBatchCopies::AddInputs(int micro_batch) {
  for (const ValueId input : inputs_) Own(input, micro_batch);
}

void MicroBatchCopies::Add(const Op& original, int pass, int micro_batch) {
  Op op = original;
  op.attributes.pass = pass;
  op.attributes.micro_batch = micro_batch;
  for (ValueId& input : op.inputs) input = Own(input, micro_batch);
  for (graph::Output& output : op.outputs) {
    output.value = Own(output.value, micro_batch);
    output.may_overwrite = Own(output.may_overwrite, micro_batch);
    if (micro_batch > 0 && output.mode == graph::WriteMode::kAccumulateInStep) {
      output.mode = graph::WriteMode::kAccumulate;
    }
  }
  graph_.ops.push_back(std::move(op));
}

ValueId MicroBatchCopies::Own(ValueId id, int micro_batch) {
  if (id == kNoValue || micro_batch == 0 || shared_[id]) return id;
  const auto index = static_cast<size_t>(micro_batch);
  if (own_.size() <= index) own_.resize(index + 1);
  if (own_[index].empty()) own_[index].assign(shared_.size(), kNoValue);
  ValueId& own = own_[index][id];
  if (own != kNoValue) return own;
  own = static_cast<ValueId>(graph_.values.size());
  graph::Value value = graph_.values[id];
  value.name = InputName(value.name, micro_batch);
  if (value.kind == ValueKind::kInput) graph_.inputs.push_back(own);
  graph_.values.push_back(std::move(value));
  return own;
}

}  // namespace milepost::plan
