#include "engine/plan/passes/pipeline_pass.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/models/model.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using ::testing::HasSubstr;

constexpr PipelineSchedule kOrders[] = {PipelineSchedule::kOneForwardOneBackward,
                                        PipelineSchedule::kZeroBubble};

PlanOptions StageOptions(int stages, int stage, int64_t micro_batches,
                         PipelineSchedule schedule = kOrders[0]) {
  PlanOptions options = OptionsOf(1, 0, DType::kF32);
  options.pipeline = stages;
  options.stage = stage;
  options.schedule = schedule;
  options.accumulation = micro_batches;
  return options;
}

PlanOptions InterleavedOptions(int stages, int chunks, int stage, int64_t micro_batches) {
  PlanOptions options = StageOptions(stages, stage, micro_batches, PipelineSchedule::kInterleaved);
  options.chunks = chunks;
  return options;
}

StepPlan PlanStage(const PlanOptions& options, int64_t layers = 4) {
  auto plan = PlanTraining(SpecOf({.layers = layers}), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::vector<std::string> TransfersOf(const Program& program, Stream stream) {
  std::vector<std::string> transfers;
  for (const PlannedOp& op : program.ops) {
    if (op.stream != stream) continue;
    transfers.push_back(absl::StrCat(op.op.kind == OpKind::kStageSend ? "to " : "from ",
                                     op.op.attributes.peer_stage, ": ",
                                     op.op.attributes.micro_batch));
  }
  return transfers;
}

// The parameters of all stages are those of the model, each at one stage, but for the embedding,
// which is the head of the last one too.
TEST(PipelinePass, EveryParameterHasItsStage) {
  std::multiset<std::string> held;
  size_t parameters = 0;
  for (int stage = 0; stage < 3; ++stage) {
    const StepPlan plan = PlanStage(StageOptions(3, stage, 4));
    for (const FlatGroup& group : plan.groups) {
      for (const GroupParameter& p : group.parameters) {
        held.insert(p.name);
        EXPECT_EQ(group.shared, p.name == "transformer.wte.weight") << p.name;
      }
    }
    parameters = plan.train.graph.parameters.size();
  }
  EXPECT_EQ(held.size(), parameters + 1);
  EXPECT_EQ(held.count("transformer.wte.weight"), 2);
}

// What goes from stage to stage is the residual stream, with all that was added to it: one value of
// each micro-batch, and its gradient. With dropout the stage that adds has to drop too.
TEST(PipelinePass, AStageHandsOnOneValue) {
  std::vector<v1::JobSpec> specs = {SpecOf({.layers = 4}), SpecOf({.layers = 4, .dropout = 0.1})};
  v1::LlamaSpec& llama = *specs.emplace_back().mutable_model()->mutable_llama();
  llama.set_layers(4);
  llama.set_width(64);
  llama.set_heads(4);
  llama.set_kv_heads(2);
  llama.set_head_dim(16);
  llama.set_hidden(128);
  llama.set_context(32);
  llama.set_vocabulary(96);
  constexpr size_t kMicroBatches = 5;
  for (const v1::JobSpec& spec : specs) {
    for (int stage = 0; stage < 3; ++stage) {
      const auto plan = PlanTraining(spec, StageOptions(3, stage, kMicroBatches));
      ASSERT_TRUE(plan.ok()) << plan.status();
      const size_t values = spec.model().gpt2().dropout() > 0 ? 2 : 1;
      const size_t ends = stage == 1 ? 2 : 1;
      for (const Stream stream : {Stream::kStageActivations, Stream::kStageGradients}) {
        EXPECT_EQ(TransfersOf(plan->train, stream).size(), values * ends * kMicroBatches);
      }
      EXPECT_EQ(TransfersOf(plan->evaluate, Stream::kStageActivations).size(), ends);
    }
  }
}

// Both ends of a stream between two stages come to the same transfers in the same order.
TEST(PipelinePass, SendsMeetReceives) {
  for (const PipelineSchedule schedule : kOrders) {
    std::vector<StepPlan> plans;
    for (int stage = 0; stage < 4; ++stage) {
      plans.push_back(PlanStage(StageOptions(4, stage, 6, schedule)));
    }
    for (int stage = 0; stage + 1 < 4; ++stage) {
      for (const bool forward : {true, false}) {
        const Stream stream = forward ? Stream::kStageActivations : Stream::kStageGradients;
        const int from = forward ? stage : stage + 1, to = forward ? stage + 1 : stage;
        std::vector<std::string> sent, received;
        for (const std::string& one : TransfersOf(plans[from].train, stream)) {
          const std::string prefix = absl::StrCat("to ", to, ": ");
          if (one.starts_with(prefix)) sent.push_back(one.substr(prefix.size()));
        }
        for (const std::string& one : TransfersOf(plans[to].train, stream)) {
          const std::string prefix = absl::StrCat("from ", from, ": ");
          if (one.starts_with(prefix)) received.push_back(one.substr(prefix.size()));
        }
        EXPECT_EQ(sent, received);
        EXPECT_EQ(sent.size() % 6, 0);
        EXPECT_GT(sent.size(), 0);
      }
    }
  }
}

TEST(PipelinePass, EveryStageIsVerified) {
  for (const PipelineSchedule schedule : kOrders) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const int zero : {0, 1, 2, 3}) {
        for (int stage = 0; stage < 3; ++stage) {
          PlanOptions options = StageOptions(3, stage, 5, schedule);
          options.world = zero == 0 ? 1 : 2;
          options.zero_stage = zero;
          options.recompute = recompute;
          EXPECT_EQ(Verify(PlanStage(options)), absl::OkStatus())
              << Name(schedule) << ", stage " << stage << ", ZeRO " << zero;
        }
      }
    }
  }
}

// Of 6 layers in 6 runs stage s has the s-th run and the one three behind it.
TEST(PipelinePass, InterleavedStagesHaveSeveralRuns) {
  std::multiset<std::string> held;
  size_t parameters = 0;
  for (int stage = 0; stage < 3; ++stage) {
    const StepPlan plan = PlanStage(InterleavedOptions(3, 2, stage, 4), 6);
    std::set<std::string> layers;
    for (const FlatGroup& group : plan.groups) {
      if (group.name.starts_with("h.")) layers.insert(group.name);
      for (const GroupParameter& p : group.parameters) {
        held.insert(p.name);
        EXPECT_EQ(group.shared, p.name == "transformer.wte.weight") << p.name;
      }
    }
    EXPECT_EQ(layers,
              (std::set<std::string>{absl::StrCat("h.", stage), absl::StrCat("h.", stage + 3)}));
    parameters = plan.train.graph.parameters.size();
  }
  EXPECT_EQ(held.size(), parameters + 1);
  EXPECT_EQ(held.count("transformer.wte.weight"), 2);
}

// Of a stage's streams, what it hands on and takes, in order: whether it sends, the micro-batch,
// and the run of blocks that sends it.
struct Handed {
  bool send = false;
  int peer = 0;
  int64_t micro_batch = 0;
  int from_run = 0;
};

std::vector<Handed> HandedBy(const StepPlan& plan, const Program& program, Stream stream) {
  const PlanOptions& o = plan.options;
  std::vector<Handed> handed;
  for (const PlannedOp& op : program.ops) {
    if (op.stream != stream) continue;
    const bool send = op.op.kind == OpKind::kStageSend;
    const int run = op.op.attributes.chunk * o.pipeline + o.stage;
    const int before = stream == Stream::kStageActivations ? run - 1 : run + 1;
    handed.push_back(
        {send, op.op.attributes.peer_stage, op.op.attributes.micro_batch, send ? run : before});
  }
  return handed;
}

// Stages that come to the ends of a transfer at once, each stream in its order. How many took
// place, or -1 where some wait for ever.
int CountHandovers(const std::vector<std::vector<Handed>>& stages) {
  std::vector<size_t> at(stages.size(), 0);
  int count = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      if (at[s] == stages[s].size() || !stages[s][at[s]].send) continue;
      const Handed& sent = stages[s][at[s]];
      const auto peer = static_cast<size_t>(sent.peer);
      if (at[peer] == stages[peer].size()) continue;
      const Handed& received = stages[peer][at[peer]];
      if (received.send || received.peer != static_cast<int>(s)) continue;
      if (received.micro_batch != sent.micro_batch || received.from_run != sent.from_run) return -1;
      ++at[s], ++at[peer], ++count;
      moved = true;
    }
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    if (at[s] != stages[s].size()) return -1;
  }
  return count;
}

// Both ends of a ring's transfers come to them in one order, in training and in validation.
TEST(PipelinePass, InterleavedSendsMeetReceives) {
  for (const auto& [stages, chunks, micro_batches] :
       {std::tuple(2, 2, 4), std::tuple(2, 3, 3), std::tuple(3, 2, 5), std::tuple(4, 2, 8)}) {
    std::vector<StepPlan> plans;
    for (int stage = 0; stage < stages; ++stage) {
      plans.push_back(PlanStage(InterleavedOptions(stages, chunks, stage, micro_batches), 8));
    }
    const int borders = stages * chunks - 1;
    for (const Stream stream : {Stream::kStageActivations, Stream::kStageGradients}) {
      std::vector<std::vector<Handed>> trains, evaluates;
      for (const StepPlan& plan : plans) {
        trains.push_back(HandedBy(plan, plan.train, stream));
        evaluates.push_back(HandedBy(plan, plan.evaluate, stream));
      }
      EXPECT_EQ(CountHandovers(trains), borders * micro_batches) << stages << " x " << chunks;
      EXPECT_EQ(CountHandovers(evaluates), stream == Stream::kStageActivations ? borders : 0);
    }
  }
}

TEST(PipelinePass, InterleavedStagesAreVerified) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (int stage = 0; stage < 3; ++stage) {
        PlanOptions options = InterleavedOptions(3, 2, stage, 4);
        options.world = zero == 0 ? 1 : 2;
        options.zero_stage = zero;
        options.recompute = recompute;
        EXPECT_EQ(Verify(PlanStage(options, 6)), absl::OkStatus())
            << "stage " << stage << ", ZeRO " << zero;
      }
    }
  }
}

// A value that passes a stage's blocks by comes to its next run by the stages between, as one of
// its own.
TEST(PipelinePass, WhatPassesThroughIsReceivedByEachRun) {
  graph::Graph graph;
  graph.blocks = {"a", "b", "c", "d"};
  for (const char* name : {"x", "y", "z", "v", "w"}) {
    graph.values.push_back(
        {.name = name, .dtype = DType::kF32, .shape = {4}, .kind = graph::ValueKind::kActivation});
  }
  graph.values.push_back(
      {.name = "p", .dtype = DType::kF32, .shape = {4}, .kind = graph::ValueKind::kParameter});
  graph.parameters.push_back({.value = 5});
  const auto op = [&](int block, std::vector<graph::ValueId> inputs, graph::ValueId out) {
    graph.ops.push_back({.kind = OpKind::kScale,
                         .block = block,
                         .inputs = std::move(inputs),
                         .outputs = {{.value = out}}});
  };
  op(0, {5}, 0);
  op(1, {0}, 1);
  op(2, {1}, 2);
  op(3, {2, 0}, 3);  // x, made by the first block
  std::vector<std::string> texts;
  for (int stage = 0; stage < 2; ++stage) {
    graph::Graph own = graph;
    CutStage(own, {0, 1, 2, 3}, /*stages=*/2, stage);
    std::string text;
    for (const graph::Op& o : own.ops) {
      absl::StrAppend(&text, graph::Name(o.kind), "(");
      for (const graph::ValueId input : o.inputs)
        absl::StrAppend(&text, own.values[input].name, " ");
      for (const graph::Output& output : o.outputs) {
        absl::StrAppend(&text, "-> ", own.values[output.value].name);
      }
      absl::StrAppend(&text, ") ");
    }
    texts.push_back(text);
  }
  EXPECT_EQ(texts[0],
            "scale(p -> x) stage_send(x ) "
            "stage_receive(-> x, received again) stage_receive(-> y) scale(y -> z) "
            "stage_send(x, received again ) stage_send(z ) ");
  EXPECT_EQ(texts[1],
            "stage_receive(-> x) scale(x -> y) stage_send(x ) stage_send(y ) "
            "stage_receive(-> x, received again) stage_receive(-> z) "
            "scale(z x, received again -> v) ");
}

// With more micro-batches than it keeps, a stage needs no more memory but for their inputs.
TEST(PipelinePass, MemoryIsThatOfTheMicroBatchesThatAreKept) {
  for (const PipelineSchedule schedule : kOrders) {
    const auto activations = [&](int stage, int64_t micro_batches) {
      const StepPlan plan = PlanStage(StageOptions(4, stage, micro_batches, schedule), 8);
      return static_cast<double>(plan.bytes_by_class[static_cast<int>(BufferClass::kActivations)]);
    };
    for (int stage = 0; stage < 3; ++stage) {
      EXPECT_LT(activations(stage, 16), 1.05 * activations(stage, 8)) << stage;
    }
    for (int stage = 0; stage < 2; ++stage) {
      const auto of_chunks = [&](int64_t micro_batches) {
        const StepPlan plan = PlanStage(InterleavedOptions(2, 2, stage, micro_batches), 8);
        return static_cast<double>(ClassBytes(plan, BufferClass::kActivations));
      };
      EXPECT_LT(of_chunks(16), 1.05 * of_chunks(8)) << stage;
    }
    if (schedule == PipelineSchedule::kZeroBubble) continue;
    // Of as many layers as the stage before has: three micro-batches instead of four.
    EXPECT_LT(activations(2, 8), 0.8 * activations(1, 8));
  }
}

TEST(PipelinePass, OneMicroBatchIsEnough) {
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(Verify(PlanStage(StageOptions(4, stage, 1))), absl::OkStatus());
    EXPECT_EQ(Verify(PlanStage(InterleavedOptions(4, 2, stage, 1), 8)), absl::OkStatus());
  }
}

// The sum of the stages' products is the model's.
TEST(PipelinePass, StagesDoTheModelsWork) {
  double flops = 0;
  for (int stage = 0; stage < 4; ++stage) {
    const StepPlan plan = PlanStage(StageOptions(4, stage, 3));
    for (const PlannedOp& op : plan.train.ops) flops += op.flops;
    EXPECT_NEAR(plan.flops_per_step * 4, PlanStage(StageOptions(1, 0, 3)).flops_per_step, 1);
  }
  EXPECT_NEAR(flops, PlanStage(StageOptions(1, 0, 3)).flops_per_step, 1);
}

class PipelineVerify : public testing::Test {
 protected:
  PipelineVerify() : plan_(PlanStage(StageOptions(3, 0, 4))) {}
  size_t First(OpKind kind) const {
    const auto& ops = plan_.train.ops;
    return static_cast<size_t>(
        std::find_if(ops.begin(), ops.end(),
                     [&](const PlannedOp& op) { return op.op.kind == kind; }) -
        ops.begin());
  }
  void ExpectRefused(const char* message) const {
    EXPECT_THAT(Verify(plan_).message(), HasSubstr(message));
  }
  StepPlan plan_;
};

TEST_F(PipelineVerify, SharedGradientsAreAddedBeforeTheirUse) {
  const PlannedOp& reduction = plan_.train.ops[First(OpKind::kReduceShared)];
  plan_.groups[reduction.op.attributes.group].shared = false;
  ExpectRefused("the gradients of stages are added 1 times");
}

TEST_F(PipelineVerify, WireBytesOfATransfer) {
  plan_.train.ops[First(OpKind::kStageSend)].wire_bytes += 4;
  ExpectRefused("stage_send sends");
}

// What a pass has received is read only once it is there.
TEST_F(PipelineVerify, AReceiveIsWaitedFor) {
  const auto received = static_cast<int32_t>(First(OpKind::kStageReceive));
  for (PlannedOp& op : plan_.train.ops) std::erase(op.wait_for, received);
  ExpectRefused("neither waits for the other");
}

}  // namespace
}  // namespace milepost::plan
