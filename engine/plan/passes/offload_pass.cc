#include "engine/plan/passes/offload_pass.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

constexpr int kNever = -1;
// Visits of the backward to blocks, from its begin, whose inputs stay on the device.
constexpr int kFirstVisits = 2;

class OffloadPass {
 public:
  explicit OffloadPass(graph::Graph& graph)
      : graph_(graph),
        made_(graph.values.size(), false),
        last_use_(graph.values.size(), kNever),
        first_visit_(graph.values.size(), kNever),
        fetched_(graph.values.size(), kNoValue) {}

  void Run() && {
    FindUses();
    std::vector<std::vector<ValueId>> leaves(graph_.ops.size());  // by op: copied right after it
    std::vector<std::vector<ValueId>> returns(visit_begins_.size());  // by visit: fetched before it
    for (size_t id = 0; id < made_.size(); ++id) {
      if (!IsOffloaded(static_cast<ValueId>(id))) continue;
      leaves[last_use_[id]].push_back(static_cast<ValueId>(id));
      returns[first_visit_[id] - 1].push_back(static_cast<ValueId>(id));
    }
    std::vector<Op> ops = std::exchange(graph_.ops, {});
    size_t visit = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (visit < visit_begins_.size() && visit_begins_[visit] == i) {
        for (const ValueId value : returns[visit]) Fetch(value, ops[i].block);
        ++visit;
      }
      if (ops[i].phase != graph::Phase::kForward) Rename(ops[i]);
      const int block = ops[i].block;
      graph_.ops.push_back(std::move(ops[i]));
      for (const ValueId value : leaves[i]) Send(value, block);
    }
  }

 private:
  void FindUses() {
    int block = graph::kNoBlock;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      const bool forward = op.phase == graph::Phase::kForward;
      if (!forward && (visit_begins_.empty() || op.block != block)) {
        visit_begins_.push_back(i);
        block = op.block;
      }
      for (const ValueId input : op.inputs) {
        if (input == kNoValue) continue;
        if (forward) {
          last_use_[input] = static_cast<int>(i);
        } else if (first_visit_[input] == kNever) {
          first_visit_[input] = static_cast<int>(visit_begins_.size()) - 1;
        }
      }
      for (const graph::Output& output : op.outputs) {
        if (output.value == kNoValue || !forward) continue;
        made_[output.value] = true;
        last_use_[output.value] = static_cast<int>(i);
      }
    }
  }

  bool IsOffloaded(ValueId id) const {
    const graph::Value& value = graph_.values[id];
    return made_[id] && value.kind == graph::ValueKind::kActivation &&
           first_visit_[id] >= kFirstVisits &&
           graph::Elements(value.shape) * ByteSize(value.dtype) >= kLeastOffloadBytes;
  }

  ValueId Add(ValueId like, absl::string_view prefix) {
    graph::Value value = graph_.values[like];
    value.name = absl::StrCat(prefix, value.name);
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  void Copy(OpKind kind, graph::Phase phase, int block, ValueId from, ValueId to) {
    Op op = {.kind = kind, .phase = phase, .block = block, .inputs = {from}};
    op.outputs.push_back({.value = to});
    graph_.ops.push_back(std::move(op));
  }

  void Send(ValueId value, int block) {
    fetched_[value] = Add(value, "on the host: ");  // until it is fetched
    Copy(OpKind::kCopyToHost, graph::Phase::kForward, block, value, fetched_[value]);
  }

  void Fetch(ValueId value, int block) {
    const ValueId host = fetched_[value];
    fetched_[value] = Add(value, "fetched ");
    Copy(OpKind::kCopyToDevice, graph::Phase::kBackward, block, host, fetched_[value]);
  }

  ValueId Now(ValueId value) const {
    const bool offloaded = value != kNoValue && value < static_cast<ValueId>(fetched_.size()) &&
                           fetched_[value] != kNoValue;
    return offloaded ? fetched_[value] : value;
  }

  void Rename(Op& op) const {
    for (ValueId& input : op.inputs) input = Now(input);
    for (graph::Output& output : op.outputs) output.may_overwrite = Now(output.may_overwrite);
  }

  graph::Graph& graph_;
  std::vector<size_t> visit_begins_;  // of the backward: the first op of each run of one block's
  // By value:
  std::vector<bool> made_;        // by the forward
  std::vector<int> last_use_;     // of the forward: an op
  std::vector<int> first_visit_;  // of the backward
  std::vector<ValueId> fetched_;  // where the backward finds it
};

}  // namespace

void OffloadActivations(graph::Graph& graph) { OffloadPass(graph).Run(); }

}  // namespace milepost::plan
