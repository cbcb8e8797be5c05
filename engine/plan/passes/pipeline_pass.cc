#include "engine/plan/passes/pipeline_pass.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/ops/pipeline/pipeline.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;
using graph::ValueKind;

class StageCutter {
 public:
  StageCutter(graph::Graph& graph, const std::vector<int>& stage_of_block, int stage)
      : graph_(graph),
        stage_of_block_(stage_of_block),
        stage_(stage),
        producer_(graph.values.size(), nullptr),
        anywhere_(graph.values.size(), false),
        readers_(graph.values.size()) {
    for (const Op& op : graph.ops) {
      for (const ValueId input : op.inputs) {
        if (input != kNoValue) readers_[input].Add(StageOf(op), stage);
      }
      const bool anywhere = Anywhere(op);
      for (const graph::Output& output : op.outputs) {
        if (output.value == kNoValue) continue;
        producer_[output.value] = &op;
        anywhere_[output.value] = anywhere;
      }
    }
  }

  void Run() && {
    MarkParameters();
    std::vector<Op> ops;
    for (const ValueId value : Crossing(stage_ - 1)) {
      ops.push_back(ops::StageReceiveOp(value, stage_ - 1));
    }
    const std::set<const Op*> again = MadeAgain();
    for (const Op& op : graph_.ops) {
      if (StageOf(op) == stage_ || again.contains(&op)) ops.push_back(op);
    }
    for (const ValueId value : Crossing(stage_)) {
      ops.push_back(ops::StageSendOp(value, stage_ + 1));
    }
    graph_.ops = std::move(ops);
  }

 private:
  // Which stages read a value.
  struct Readers {
    void Add(int stage, int own) {
      first = last < 0 ? stage : std::min(first, stage);
      last = std::max(last, stage);
      here |= stage == own;
    }
    bool Several() const { return first != last; }

    int first = -1, last = -1;
    bool here = false;
  };

  int StageOf(const Op& op) const { return stage_of_block_[op.block]; }

  // Whether it depends on inputs alone, so that any stage can make it.
  bool Anywhere(const Op& op) const {
    return std::all_of(op.inputs.begin(), op.inputs.end(), [&](ValueId input) {
      return input == kNoValue || graph_.values[input].kind == ValueKind::kInput ||
             anywhere_[input];
    });
  }

  // What goes from a stage to the next one, in the order of its making.
  std::vector<ValueId> Crossing(int from) const {
    std::vector<ValueId> crossing;
    for (const Op& op : graph_.ops) {
      if (StageOf(op) > from || Anywhere(op)) continue;
      for (const graph::Output& output : op.outputs) {
        if (output.value != kNoValue && readers_[output.value].last > from) {
          crossing.push_back(output.value);
        }
      }
    }
    return crossing;
  }

  // Ops of earlier stages that this one makes too.
  std::set<const Op*> MadeAgain() const {
    std::set<const Op*> again;
    const auto add = [&](const auto& self, const Op& reader) -> void {
      for (const ValueId input : reader.inputs) {
        const Op* op = input == kNoValue ? nullptr : producer_[input];
        if (op == nullptr || StageOf(*op) == stage_ || !Anywhere(*op)) continue;
        if (again.insert(op).second) self(self, *op);
      }
    };
    for (const Op& op : graph_.ops) {
      if (StageOf(op) == stage_) add(add, op);
    }
    return again;
  }

  void MarkParameters() {
    for (graph::Parameter& parameter : graph_.parameters) {
      const Readers& readers = readers_[parameter.value];
      parameter.elsewhere = !readers.here;
      parameter.shared = readers.here && readers.Several();
    }
  }

  graph::Graph& graph_;
  const std::vector<int>& stage_of_block_;
  const int stage_;
  // By value.
  std::vector<const Op*> producer_;
  std::vector<bool> anywhere_;  // made of inputs alone
  std::vector<Readers> readers_;
};

class Unroller {
 public:
  Unroller(graph::Graph& graph, const std::vector<Pass>& passes)
      : graph_(graph), passes_(passes), ops_(std::exchange(graph.ops, {})) {}

  void Run() && {
    FindShared();
    SortOps();
    AddInputs();
    for (const Op* op : once_) graph_.ops.push_back(*op);
    for (size_t i = 0; i < passes_.size(); ++i) {
      if (i == 0) Add(0, Part::kReceives);
      if (i + 1 < passes_.size()) Add(i + 1, Part::kReceives);
      Add(i, Part::kComputes);
      Add(i, Part::kSends);
    }
  }

 private:
  enum class Part : uint8_t { kReceives, kComputes, kSends };

  // Also those that only other stages read: every rank is given all.
  void AddInputs() {
    const std::vector<ValueId> inputs = graph_.inputs;
    for (const Pass& pass : passes_) {
      for (const ValueId input : inputs) Own(input, pass.micro_batch);
    }
  }

  // What is the same for all micro-batches.
  void FindShared() {
    shared_.resize(graph_.values.size());
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      const ValueKind kind = graph_.values[id].kind;
      shared_[id] = kind == ValueKind::kParameter || kind == ValueKind::kParameterGradient ||
                    kind == ValueKind::kStepAccumulator;
    }
    for (const Op& op : ops_) {
      const bool reads = std::any_of(op.inputs.begin(), op.inputs.end(),
                                     [](ValueId input) { return input != kNoValue; });
      const bool once =
          op.phase == graph::Phase::kForward && !reads && op.kind != OpKind::kStageReceive;
      if (!once) continue;
      once_.push_back(&op);
      for (const graph::Output& output : op.outputs) {
        if (output.value != kNoValue) shared_[output.value] = true;
      }
    }
  }

  void SortOps() {
    const bool split = std::any_of(passes_.begin(), passes_.end(), [](const Pass& pass) {
      return pass.kind == PassKind::kWeights;
    });
    const std::set<const Op*> awaited = split ? Awaited() : std::set<const Op*>();
    for (const Op& op : ops_) {
      if (std::find(once_.begin(), once_.end(), &op) != once_.end()) continue;
      const PassKind kind = op.phase == graph::Phase::kForward ? PassKind::kForward
                            : !split || awaited.contains(&op)  ? PassKind::kBackward
                                                               : PassKind::kWeights;
      by_kind_[static_cast<int>(kind)].push_back(&op);
    }
  }

  // Of the backward: what the gradients that are sent are made of; where none is, everything but
  // what only makes gradients of parameters.
  std::set<const Op*> Awaited() const {
    std::vector<const Op*> producer(graph_.values.size(), nullptr);
    for (const Op& op : ops_) {
      for (const graph::Output& output : op.outputs) {
        if (output.value != kNoValue) producer[output.value] = &op;
      }
    }
    const bool sends = HasSends();
    std::set<const Op*> awaited;
    const auto add = [&](const auto& self, const Op& op) -> void {
      if (op.phase == graph::Phase::kForward || !awaited.insert(&op).second) return;
      for (const ValueId input : op.inputs) {
        const Op* maker = input == kNoValue ? nullptr : producer[input];
        if (maker != nullptr) self(self, *maker);
      }
    };
    for (const Op& op : ops_) {
      const bool transfer = ops::IsStageTransfer(op.kind);
      const bool passes_on =
          std::any_of(op.outputs.begin(), op.outputs.end(), [&](const graph::Output& output) {
            return output.value != kNoValue &&
                   graph_.values[output.value].kind == ValueKind::kActivation;
          });
      if (transfer || (passes_on && !sends)) add(add, op);
      if (IsLossBackward(op)) add(add, op);
    }
    return awaited;
  }

  bool HasSends() const {
    return std::any_of(ops_.begin(), ops_.end(), [](const Op& op) {
      return op.kind == OpKind::kStageSend && op.phase != graph::Phase::kForward;
    });
  }

  // It makes the loss too.
  bool IsLossBackward(const Op& op) const {
    return std::any_of(op.outputs.begin(), op.outputs.end(), [&](const graph::Output& output) {
      return output.value != kNoValue &&
             graph_.values[output.value].kind == ValueKind::kStepAccumulator;
    });
  }

  void Add(size_t index, Part part) {
    const Pass& pass = passes_[index];
    for (const Op* op : by_kind_[static_cast<int>(pass.kind)]) {
      const Part own = op->kind == OpKind::kStageReceive ? Part::kReceives
                       : op->kind == OpKind::kStageSend  ? Part::kSends
                                                         : Part::kComputes;
      if (own == part) AddOp(*op, static_cast<int>(index), pass.micro_batch);
    }
  }

  void AddOp(const Op& original, int pass, int micro_batch) {
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

  // The micro-batch's own value. The first has those that are there.
  ValueId Own(ValueId id, int micro_batch) {
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

  graph::Graph& graph_;
  const std::vector<Pass>& passes_;
  const std::vector<Op> ops_;
  std::vector<bool> shared_;               // by value
  std::vector<const Op*> once_;            // made once for all micro-batches
  std::vector<const Op*> by_kind_[3];      // of one micro-batch, by kind of pass
  std::vector<std::vector<ValueId>> own_;  // by micro-batch and value
};

}  // namespace

void CutStage(graph::Graph& graph, const std::vector<int>& stage_of_block, int stage) {
  StageCutter(graph, stage_of_block, stage).Run();
}

void UnrollPasses(graph::Graph& graph, const std::vector<Pass>& passes) {
  Unroller(graph, passes).Run();
}

void LimitTransfers(Program& program) {
  std::vector<int32_t> ends;   // by pass: its last op that computes
  std::vector<int32_t> sends;  // by pass: its last send
  const auto at = [](std::vector<int32_t>& by_pass, int pass) -> int32_t& {
    if (by_pass.size() <= static_cast<size_t>(pass)) by_pass.resize(pass + 1, -1);
    return by_pass[pass];
  };
  int begun = -1;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    PlannedOp& planned = program.ops[i];
    const int pass = planned.op.attributes.pass;
    if (pass < 0 || planned.op.attributes.group >= 0) continue;
    if (planned.op.kind == OpKind::kStageReceive) {
      if (pass >= kPassesReceivedAhead) planned.after = at(ends, pass - kPassesReceivedAhead);
    } else if (planned.op.kind == OpKind::kStageSend) {
      at(sends, pass) = static_cast<int32_t>(i);
    } else {
      at(ends, pass) = static_cast<int32_t>(i);
      // Beside another one that it has already, it comes to the pass's next op.
      if (begun < pass && planned.after < 0) {
        begun = pass;
        if (pass >= kPassesUnsent) planned.after = at(sends, pass - kPassesUnsent);
      }
    }
  }
}

}  // namespace milepost::plan
