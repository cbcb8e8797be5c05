#include "engine/plan/passes/pipeline_pass.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/ops/norm/norm.h"
#include "engine/ops/op_definition.h"
#include "engine/ops/pipeline/pipeline.h"
#include "engine/plan/passes/micro_batch_copies.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;
using graph::ValueKind;

// A run that begins with a norm over what it first adds to the residual stream would be handed both
// parts. Here the run before adds them, and hands on the sum alone; one gradient comes back. With
// dropout it stays as it is: an op for dropout alone would round once more.
class SumsBeforeHandovers {
 public:
  SumsBeforeHandovers(graph::Graph& graph, const std::vector<int>& run_of_block)
      : graph_(graph), run_of_block_(run_of_block), uses_(graph.values.size()) {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      const Op& op = graph.ops[i];
      for (const ValueId input : op.inputs) {
        if (input != kNoValue) uses_[input].readers.push_back(RunOf(op));
      }
      for (const graph::Output& output : op.outputs) {
        if (output.value != kNoValue) uses_[output.value].maker = i;
      }
    }
  }

  void Run() && {
    std::multimap<size_t, Op> sums;  // by the op behind which they come
    for (Op& op : graph_.ops) {
      if (!Takes(op)) continue;
      const size_t behind = std::max(*uses_[op.inputs[0]].maker, *uses_[op.inputs[1]].maker);
      sums.emplace(behind, SumOf(op, graph_.ops[behind].block));
      ops::LeaveOutSum(op);
    }
    std::vector<Op> ops;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      ops.push_back(std::move(graph_.ops[i]));
      const auto [begin, end] = sums.equal_range(i);
      for (auto sum = begin; sum != end; ++sum) ops.push_back(std::move(sum->second));
    }
    graph_.ops = std::move(ops);
  }

 private:
  struct Uses {
    std::optional<size_t> maker;  // index of an op
    std::vector<int> readers;     // their runs
  };

  int RunOf(const Op& op) const { return run_of_block_[op.block]; }

  // Whether earlier runs make both parts, and of later ones' ops this one alone reads them.
  bool Takes(const Op& op) const {
    if (ops::DefinitionOf(op.kind).after_sum == graph::kNoOpKind) return false;
    if (op.attributes.dropout > 0) return false;
    return std::all_of(op.inputs.begin(), op.inputs.begin() + 2, [&](ValueId part) {
      const Uses& uses = uses_[part];
      if (!uses.maker) return false;
      const int made = RunOf(graph_.ops[*uses.maker]);
      const auto later = std::count_if(uses.readers.begin(), uses.readers.end(),
                                       [&](int run) { return run > made; });
      return made < RunOf(op) && later == 1;
    });
  }

  Op SumOf(const Op& norm, int block) {
    const ValueId sum = norm.outputs[0].value, delta = norm.inputs[1];
    graph_.values[sum].block = block;
    Op op = norm;
    op.kind = OpKind::kAdd;
    op.block = block;
    op.inputs = {norm.inputs[0], delta};
    op.outputs = {{.value = sum, .may_overwrite = delta}};
    return op;
  }

  graph::Graph& graph_;
  const std::vector<int>& run_of_block_;
  std::vector<Uses> uses_;  // by value
};

class StageCutter {
 public:
  StageCutter(graph::Graph& graph, const std::vector<int>& run_of_block, int stages, int stage)
      : graph_(graph),
        run_of_block_(run_of_block),
        stages_(stages),
        stage_(stage),
        producer_(graph.values.size(), nullptr),
        anywhere_(graph.values.size(), false),
        readers_(graph.values.size()),
        here_(graph.values.size(), false) {
    for (const Op& op : graph.ops) {
      for (const ValueId input : op.inputs) {
        if (input != kNoValue) readers_[input].Add(RunOf(op), stages, stage);
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
    const int runs = run_of_block_.empty() ? 0 : run_of_block_.back() + 1;
    for (int run = stage_; run < runs; run += stages_) AddRun(run);
    graph_.ops = std::move(ops_);
  }

 private:
  // Who reads a value.
  struct Readers {
    void Add(int run, int stages, int own) {
      const int stage = run % stages;
      several |= any_stage >= 0 && any_stage != stage;
      any_stage = stage;
      last_run = std::max(last_run, run);
      here |= stage == own;
    }

    int any_stage = -1, last_run = -1;
    bool several = false;  // stages
    bool here = false;
  };

  int RunOf(const Op& op) const { return run_of_block_[op.block]; }

  // Whether it depends on inputs alone, so that any stage can make it.
  bool Anywhere(const Op& op) const {
    return std::all_of(op.inputs.begin(), op.inputs.end(), [&](ValueId input) {
      return input == kNoValue || graph_.values[input].kind == ValueKind::kInput ||
             anywhere_[input];
    });
  }

  // What goes from a run of blocks to the next one, in the order of its making.
  std::vector<ValueId> Crossing(int from) const {
    std::vector<ValueId> crossing;
    for (const Op& op : graph_.ops) {
      if (RunOf(op) > from || Anywhere(op)) continue;
      for (const graph::Output& output : op.outputs) {
        if (output.value != kNoValue && readers_[output.value].last_run > from) {
          crossing.push_back(output.value);
        }
      }
    }
    return crossing;
  }

  // One of this stage's runs: what it receives, its ops, what it sends.
  void AddRun(int run) {
    const int chunk = run / stages_;
    received_.clear();
    for (const ValueId value : Crossing(run - 1)) {
      AddOp(ops::StageReceiveOp(Received(value), (stage_ + stages_ - 1) % stages_), chunk);
    }
    const std::set<const Op*> again = MadeAgain(run);
    for (const Op& op : graph_.ops) {
      if (RunOf(op) != run && !again.contains(&op)) continue;
      Op own = op;
      for (ValueId& input : own.inputs) input = Own(input);
      for (graph::Output& output : own.outputs) output.may_overwrite = Own(output.may_overwrite);
      AddOp(std::move(own), chunk);
    }
    for (const ValueId value : Crossing(run)) {
      AddOp(ops::StageSendOp(Own(value), (stage_ + 1) % stages_), chunk);
    }
  }

  void AddOp(Op op, int chunk) {
    op.attributes.chunk = chunk;
    for (const graph::Output& output : op.outputs) {
      if (output.value != kNoValue && IsOfModel(output.value)) here_[output.value] = true;
    }
    ops_.push_back(std::move(op));
  }

  // What a run receives that the stage has had before is a value of its own, and so is its
  // gradient: the next stage sends that of this run alone.
  ValueId Received(ValueId value) {
    if (!here_[value]) return value;
    const auto own = static_cast<ValueId>(graph_.values.size());
    graph::Value copy = graph_.values[value];
    copy.name = absl::StrCat(copy.name, ", received again");
    graph_.values.push_back(std::move(copy));
    received_[value] = own;
    return own;
  }

  // As the run's ops know it.
  ValueId Own(ValueId value) const {
    const auto received = received_.find(value);
    return received == received_.end() ? value : received->second;
  }

  bool IsOfModel(ValueId value) const { return static_cast<size_t>(value) < here_.size(); }

  // Ops of other stages that this run makes too; those that an earlier run has made are there.
  std::set<const Op*> MadeAgain(int run) const {
    std::set<const Op*> again;
    const auto add = [&](const auto& self, const Op& reader) -> void {
      for (const ValueId input : reader.inputs) {
        const Op* op = input == kNoValue ? nullptr : producer_[input];
        if (op == nullptr || RunOf(*op) == run || !Anywhere(*op) || here_[input]) continue;
        if (again.insert(op).second) self(self, *op);
      }
    };
    for (const Op& op : graph_.ops) {
      if (RunOf(op) == run) add(add, op);
    }
    return again;
  }

  void MarkParameters() {
    for (graph::Parameter& parameter : graph_.parameters) {
      const Readers& readers = readers_[parameter.value];
      parameter.elsewhere = !readers.here;
      parameter.shared = readers.here && readers.several;
    }
  }

  graph::Graph& graph_;
  const std::vector<int>& run_of_block_;
  const int stages_;
  const int stage_;
  // By value.
  std::vector<const Op*> producer_;
  std::vector<bool> anywhere_;  // made of inputs alone
  std::vector<Readers> readers_;
  std::vector<bool> here_;               // a run before made or received it
  std::map<ValueId, ValueId> received_;  // of this run: what it calls what was there before
  std::vector<Op> ops_;
};

class Unroller {
 public:
  Unroller(graph::Graph& graph, const StageOrder& order)
      : graph_(graph), order_(order), copies_(graph) {}

  void Run() && {
    SortOps();
    for (const Pass& pass : order_.passes) copies_.AddInputs(pass.micro_batch);
    for (const StageStep& step : order_.steps) Add(step);
  }

 private:
  void SortOps() {
    const std::vector<Pass>& passes = order_.passes;
    const bool split = std::any_of(passes.begin(), passes.end(), [](const Pass& pass) {
      return pass.kind == PassKind::kWeights;
    });
    const std::set<const Op*> awaited = split ? Awaited() : std::set<const Op*>();
    for (const Op& op : copies_.ops()) {
      const PassKind kind = op.phase == graph::Phase::kForward ? PassKind::kForward
                            : !split || awaited.contains(&op)  ? PassKind::kBackward
                                                               : PassKind::kWeights;
      const auto chunk = static_cast<size_t>(op.attributes.chunk);
      std::vector<std::vector<const Op*>>& by_chunk = by_kind_[static_cast<size_t>(kind)];
      if (by_chunk.size() <= chunk) by_chunk.resize(chunk + 1);
      by_chunk[chunk].push_back(&op);
    }
  }

  // Of the backward: what the gradients that are sent are made of; where none is, everything but
  // what only makes gradients of parameters.
  std::set<const Op*> Awaited() const {
    std::vector<const Op*> producer(graph_.values.size(), nullptr);
    for (const Op& op : copies_.ops()) {
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
    for (const Op& op : copies_.ops()) {
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
    return std::any_of(copies_.ops().begin(), copies_.ops().end(), [](const Op& op) {
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

  void Add(const StageStep& step) {
    const Pass& pass = order_.passes[static_cast<size_t>(step.pass)];
    const auto& by_chunk = by_kind_[static_cast<size_t>(pass.kind)];
    const auto chunk = static_cast<size_t>(pass.chunk);
    if (chunk >= by_chunk.size()) return;
    for (const Op* op : by_chunk[chunk]) {
      const StageStep::Kind own = op->kind == OpKind::kStageReceive ? StageStep::kReceive
                                  : op->kind == OpKind::kStageSend  ? StageStep::kSend
                                                                    : StageStep::kCompute;
      if (own == step.kind) copies_.Add(*op, step.pass, pass.micro_batch);
    }
  }

  const graph::Graph& graph_;
  const StageOrder& order_;
  MicroBatchCopies copies_;
  // Of one micro-batch, by kind of pass and chunk.
  std::vector<std::vector<const Op*>> by_kind_[3];
};

}  // namespace

void CutStage(graph::Graph& graph, const std::vector<int>& run_of_block, int stages, int stage) {
  SumsBeforeHandovers(graph, run_of_block).Run();
  StageCutter(graph, run_of_block, stages, stage).Run();
}

void UnrollPasses(graph::Graph& graph, const StageOrder& order) { Unroller(graph, order).Run(); }

void LimitTransfers(Program& program) {
  std::vector<int32_t> sends;  // by pass: its last send
  const auto last_send = [&](int pass) -> int32_t& {
    if (sends.size() <= static_cast<size_t>(pass)) sends.resize(static_cast<size_t>(pass) + 1, -1);
    return sends[static_cast<size_t>(pass)];
  };
  int begun = -1;
  int32_t computed = -1;  // the last op that computes
  for (size_t i = 0; i < program.ops.size(); ++i) {
    PlannedOp& planned = program.ops[i];
    const int pass = planned.op.attributes.pass;
    if (pass < 0 || planned.op.attributes.group >= 0) continue;
    if (planned.op.kind == OpKind::kStageReceive) {
      planned.after = computed;
    } else if (planned.op.kind == OpKind::kStageSend) {
      last_send(pass) = static_cast<int32_t>(i);
    } else {
      computed = static_cast<int32_t>(i);
      // Beside another one that it has already, it comes to the pass's next op.
      if (begun < pass && planned.after < 0) {
        begun = pass;
        if (pass >= kPassesUnsent) planned.after = last_send(pass - kPassesUnsent);
      }
    }
  }
}

}  // namespace milepost::plan
