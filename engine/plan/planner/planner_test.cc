#include "engine/plan/planner/planner.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/printing/printer.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace milepost::plan {
namespace {

using graph::OpKind;
using testing::HasSubstr;

StepPlan PlanTest(const TestModel& model, const PlanOptions& options) {
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf(model), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : StepPlan{};
}

int CountOps(const Program& program, OpKind kind) {
  return static_cast<int>(
      std::count_if(program.ops.begin(), program.ops.end(),
                    [kind](const PlannedOp& op) { return op.op.kind == kind; }));
}

int64_t BytesOfClass(const StepPlan& plan, BufferClass c) {
  return plan.bytes_by_class[static_cast<int>(c)];
}

TEST(Planner, EveryCombinationVerifies) {
  for (int world : {1, 2, 3, 5, 7, 8}) {
    for (int stage : {0, 1, 2, 3}) {
      for (DType dtype : {DType::kF32, DType::kBf16}) {
        for (double dropout : {0.0, 0.1}) {
          SCOPED_TRACE(absl::StrCat(world, " ranks, stage ", stage, " ", Name(dtype)));
          const StepPlan plan = PlanTest({.dropout = dropout}, OptionsOf(world, stage, dtype));
          EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
        }
      }
    }
  }
}

TEST(Planner, CountsGpt2SmallParameters) {
  PlanOptions options = OptionsOf(1, 0, DType::kBf16);
  options.sequence = 512;
  options.accumulation = 1;
  const StepPlan plan = PlanTest(Gpt2Small(), options);
  EXPECT_EQ(plan.parameters, 124439808);  // Hugging Face's gpt2
  // Linear layers: 6 FLOPs per weight and token; attention: 7 causal T x T products of width C.
  const double tokens = 1024;
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  const double attention = 12 * 7.0 * 2 * 512 * 513 * 768;
  EXPECT_DOUBLE_EQ(plan.flops_per_step, 6 * tokens * weights + attention);
}

TEST(Planner, ClassesAddUpToTheArena) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    const StepPlan plan = PlanTest({}, OptionsOf(2, 1, dtype));
    int64_t padded = 0;
    for (const FlatGroup& group : plan.groups) padded += group.padded_elements;
    EXPECT_EQ(BytesOfClass(plan, BufferClass::kParameters), padded * ByteSize(dtype));
    EXPECT_EQ(BytesOfClass(plan, BufferClass::kGradients), padded * 4);
    const int64_t states = dtype == DType::kF32 ? 2 : 3;  // fp32: the parameters are the master
    EXPECT_EQ(BytesOfClass(plan, BufferClass::kOptimizer), padded / 2 * 4 * states);
    int64_t end = 0;
    for (const Buffer& buffer : plan.buffers) end = std::max(end, buffer.offset + buffer.bytes);
    EXPECT_EQ((end + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment, plan.arena_bytes);
  }
}

TEST(Planner, HybridShardingKeepsGathersInItsGroup) {
  PlanOptions options = OptionsOf(8, 1, DType::kBf16);
  options.shard_ranks = 4;
  const StepPlan plan = PlanTest({}, options);
  double padded = 0;
  for (const FlatGroup& group : plan.groups) {
    padded += static_cast<double>(group.padded_elements);
    EXPECT_EQ(group.shard_elements * 4, group.padded_elements);
  }
  // Reduced and gathered among 4, shards all-reduced between the 2 replicas.
  const double scalars = 2 * (7.0 / 8) * 40;
  EXPECT_DOUBLE_EQ(plan.wire_bytes_per_step,
                   0.75 * (4 + 2) * padded + 2 * 0.5 * 4 * padded / 4 + scalars);
  options.shard_ranks = 3;
  EXPECT_THAT(PlanTraining(SpecOf({}), options).status().message(),
              HasSubstr("train.zero.group: 3 does not divide the 8 ranks"));
}

TEST(Planner, OneRankHasNoCommunication) {
  for (int stage : {0, 1, 2, 3}) {
    const StepPlan plan = PlanTest({}, OptionsOf(1, stage, DType::kF32));
    EXPECT_EQ(CountOps(plan.train, OpKind::kReduceGradients), 0);
    EXPECT_EQ(CountOps(plan.train, OpKind::kGatherParameters), 0);
    EXPECT_EQ(plan.wire_bytes_per_step, 0);
    for (const PlannedOp& op : plan.train.ops) EXPECT_EQ(op.stream, Stream::kCompute);
  }
}

TEST(Planner, WireBytesAreThoseOfRings) {
  const StepPlan all = PlanTest({}, OptionsOf(4, 0, DType::kBf16));
  const StepPlan sharded = PlanTest({}, OptionsOf(4, 1, DType::kBf16));
  double padded = 0;
  for (const FlatGroup& group : all.groups) padded += static_cast<double>(group.padded_elements);
  const double scalars = 2 * 0.75 * 40;
  EXPECT_DOUBLE_EQ(all.wire_bytes_per_step, 2 * 0.75 * 4 * padded + scalars);
  EXPECT_DOUBLE_EQ(sharded.wire_bytes_per_step, 0.75 * (4 + 2) * padded + scalars);
}

TEST(Planner, GradientsThatTravelAsBf16HalveTheirWireBytes) {
  for (const int shard_ranks : {0, 2}) {
    for (const int stage : {0, 1, 2, 3}) {
      PlanOptions options = OptionsOf(4, stage, DType::kBf16);
      options.shard_ranks = stage == 0 ? 0 : shard_ranks;
      const StepPlan fp32 = PlanTest({}, options);
      options.grad_reduce = DType::kBf16;
      const StepPlan bf16 = PlanTest({}, options);
      EXPECT_EQ(bf16.arena_bytes, fp32.arena_bytes);
      ASSERT_EQ(bf16.train.ops.size(), fp32.train.ops.size());
      for (size_t i = 0; i < fp32.train.ops.size(); ++i) {
        const OpKind kind = fp32.train.ops[i].op.kind;
        const bool reduces = kind == OpKind::kReduceGradients || kind == OpKind::kReduceReplicas;
        EXPECT_DOUBLE_EQ(bf16.train.ops[i].wire_bytes,
                         fp32.train.ops[i].wire_bytes * (reduces ? 0.5 : 1));
      }
      EXPECT_LT(bf16.wire_bytes_per_step, fp32.wire_bytes_per_step);
    }
  }
}

TEST(Planner, StatesInBf16TakeHalfTheBytes) {
  for (const int stage : {0, 1, 3}) {
    PlanOptions options = OptionsOf(4, stage, DType::kBf16);
    const StepPlan fp32 = PlanTest({}, options);
    options.state_dtype = DType::kBf16;
    const StepPlan bf16 = PlanTest({}, options);
    const int optimizer = static_cast<int>(BufferClass::kOptimizer);
    EXPECT_EQ(bf16.bytes_by_class[optimizer] * 12, fp32.bytes_by_class[optimizer] * 8);
    EXPECT_LT(bf16.arena_bytes, fp32.arena_bytes);
  }
}

// Gradients and parameters of 2 bytes, at every stage, in groups and on one rank.
TEST(Planner, FewerBitsTakeFewerBytes) {
  for (const int world : {1, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int shard_ranks : {0, 2}) {
        PlanOptions options = OptionsOf(world, stage, DType::kBf16);
        options.accumulation = 1;
        options.shard_ranks = stage == 0 || world == 1 ? 0 : shard_ranks;
        const StepPlan fp32 = PlanTest({.layers = 6}, options);
        options.grad_dtype = DType::kBf16;
        options.masters = false;
        const StepPlan bf16 = PlanTest({.layers = 6}, options);
        int64_t kept = 0;
        int64_t states = 0;
        for (const FlatGroup& group : bf16.groups) {
          kept += 2 * group.shard_elements;
          states += 2 * 4 * group.shard_elements;
          EXPECT_EQ(StatesOf(group)[0].dtype, DType::kBf16);
        }
        const auto bytes = [&](BufferClass c) { return bf16.bytes_by_class[static_cast<int>(c)]; };
        EXPECT_LE(bytes(BufferClass::kGradients), kept);
        EXPECT_EQ(bytes(BufferClass::kOptimizer), states);
        EXPECT_LT(bf16.arena_bytes, fp32.arena_bytes) << world << " ranks, stage " << stage;
        EXPECT_EQ(bf16.wire_bytes_per_step, fp32.wire_bytes_per_step);
        EXPECT_EQ(CountOps(bf16.train, OpKind::kRoundGradients),
                  static_cast<int>(bf16.groups.size()));
      }
    }
  }
  PlanOptions options = OptionsOf(2, 1, DType::kBf16);
  options.grad_dtype = DType::kBf16;
  EXPECT_THAT(PlanTraining(SpecOf({}), options).status().message(),
              HasSubstr("train.grad_dtype: bf16 needs train.batch.accumulation: 1, and with 2 "
                        "ranks it is 3"));
  options = OptionsOf(2, 1, DType::kF16);
  options.masters = false;
  EXPECT_THAT(PlanTraining(SpecOf({}), options).status().message(),
              HasSubstr("train.optimizer.master: none is for train.precision bf16 and fp8"));
  options = OptionsOf(2, 1, DType::kBf16);
  options.masters = false;
  options.optimizer = Optimizer::kMuon;
  EXPECT_THAT(PlanTraining(SpecOf({}), options).status().message(),
              HasSubstr("works with adamw, adamw_8bit, sgd, lion and adan"));
}

// Stage 2 pays the reduction in every micro-step; stage 3 pays a gather there in the forward and in
// the backward instead of one after the update.
TEST(Planner, WireBytesOfShardedGradientsAndParameters) {
  PlanOptions options = OptionsOf(4, 2, DType::kBf16);
  const TestModel model = {.layers = 5};
  const StepPlan gradients = PlanTest(model, options);
  double padded = 0;
  for (const FlatGroup& group : gradients.groups) {
    padded += static_cast<double>(group.padded_elements);
  }
  const double scalars = 2 * 0.75 * 40;
  const auto micro_steps = static_cast<double>(options.accumulation);
  EXPECT_DOUBLE_EQ(gradients.wire_bytes_per_step, 0.75 * (4 * micro_steps + 2) * padded + scalars);
  options.zero_stage = 3;
  options.prefetch = 0;
  const StepPlan parameters = PlanTest(model, options);
  // The final norm's forward and backward are neighbours: one gather serves both.
  const double once = static_cast<double>(parameters.groups.back().padded_elements);
  EXPECT_DOUBLE_EQ(parameters.wire_bytes_per_step,
                   0.75 * micro_steps * (4 * padded + 2 * (2 * padded - once)) + scalars);
  options.prefetch = 1;  // the last layer stays for its backward
  const StepPlan ahead = PlanTest(model, options);
  const double last = static_cast<double>(parameters.groups[5].padded_elements);
  EXPECT_DOUBLE_EQ(ahead.wire_bytes_per_step,
                   parameters.wire_bytes_per_step - 0.75 * micro_steps * 2 * last);
}

// The op that first reads what op `gather` fills.
size_t FirstReader(const Program& program, size_t gather) {
  for (size_t i = gather; i < program.ops.size(); ++i) {
    for (graph::ValueId input : program.ops[i].op.inputs) {
      for (const graph::Output& output : program.ops[gather].op.outputs) {
        if (input == output.value) return i;
      }
    }
  }
  ADD_FAILURE() << "gather " << gather << " is for nobody";
  return gather;
}

// Blocks begun from op `from` up to op `to`.
int BlocksBegun(const Program& program, size_t from, size_t to) {
  int begun = 0;
  int block = graph::kNoBlock;
  for (size_t i = 0; i <= to; ++i) {
    const PlannedOp& op = program.ops[i];
    if (op.op.attributes.group >= 0) continue;
    if (op.op.block != block && i > from) ++begun;
    block = op.op.block;
  }
  return begun;
}

TEST(Planner, GathersStandAsFarAheadAsAskedFor) {
  for (int prefetch : {0, 1, 2}) {
    PlanOptions options = OptionsOf(2, 3, DType::kBf16);
    options.prefetch = prefetch;
    const StepPlan plan = PlanTest({.layers = 6}, options);
    for (const Program* program : {&plan.train, &plan.evaluate}) {
      int gathers = 0;
      for (size_t i = 0; i < program->ops.size(); ++i) {
        const PlannedOp& op = program->ops[i];
        if (op.op.kind != OpKind::kGatherParameters) continue;
        ++gathers;
        EXPECT_EQ(op.stream, Stream::kCommunication);
        const size_t reader = FirstReader(*program, i);
        const int ahead = BlocksBegun(*program, i, reader) - 1;
        // Only the first blocks cannot be gathered that early.
        EXPECT_EQ(ahead, op.wait_for.empty() ? std::min(gathers - 1, prefetch) : prefetch)
            << "op " << i << ", prefetch " << prefetch;
      }
      EXPECT_GT(gathers, 7);
    }
  }
}

// What a stage keeps, and what it needs for a while.
TEST(Planner, EveryStageNeedsLess) {
  PlanOptions options = OptionsOf(4, 0, DType::kBf16);
  options.sequence = 512;
  for (int64_t accumulation : {1, 4}) {
    options.accumulation = accumulation;
    int64_t previous = std::numeric_limits<int64_t>::max();
    for (int stage : {0, 1, 2, 3}) {
      options.zero_stage = stage;
      const StepPlan plan = PlanTest(Gpt2Small(), options);
      EXPECT_LT(plan.arena_bytes, previous) << "stage " << stage;
      previous = plan.arena_bytes;
      RecordProperty(absl::StrCat("arena_stage", stage, "_accumulation", accumulation),
                     std::to_string(plan.arena_bytes));
    }
  }
}

TEST(Planner, ReductionsOverlapTheBackward) {
  const StepPlan plan = PlanTest({.layers = 4}, OptionsOf(2, 1, DType::kF32));
  std::set<int> reduced;
  int backward_after_first = 0;
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.kind == OpKind::kReduceGradients) {
      EXPECT_EQ(op.stream, Stream::kCommunication);
      EXPECT_EQ(op.when, When::kLastMicroStep);
      EXPECT_EQ(op.wait_for.size(), 1u);
      reduced.insert(op.op.attributes.group);
    } else if (!reduced.empty() && op.op.phase == graph::Phase::kBackward) {
      ++backward_after_first;
      EXPECT_TRUE(op.wait_for.empty()) << "the backward waits for a reduction";
    }
  }
  EXPECT_EQ(reduced.size(), plan.groups.size());
  EXPECT_GT(backward_after_first, 4 * 8);
}

TEST(Planner, GathersOverlapUpdates) {
  const StepPlan plan = PlanTest({}, OptionsOf(2, 1, DType::kBf16));
  const auto& ops = plan.train.ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].op.kind != OpKind::kGatherParameters) continue;
    ASSERT_EQ(ops[i - 1].op.kind, OpKind::kOptimizer);
    EXPECT_EQ(ops[i].wait_for, std::vector<int32_t>{static_cast<int32_t>(i) - 1});
    if (i + 1 < ops.size()) {
      EXPECT_TRUE(ops[i + 1].wait_for.empty());
    }
  }
}

TEST(Planner, GroupsArePaddedToAlignedShards) {
  const StepPlan plan = PlanTest({.width = 24, .heads = 3}, OptionsOf(3, 1, DType::kBf16));
  ASSERT_EQ(plan.groups.size(), 4u);
  EXPECT_EQ(plan.groups[0].name, "embedding");
  EXPECT_EQ(plan.groups[1].parameters[2].name, "transformer.h.0.attn.c_attn.weight");
  for (const FlatGroup& group : plan.groups) {
    EXPECT_EQ(group.padded_elements % (3 * 128), 0);
    EXPECT_EQ(group.shard_elements * 3, group.padded_elements);
    EXPECT_LE(group.elements, group.padded_elements);
  }
}

TEST(Planner, EvaluationAddsNothingToTheArena) {
  const StepPlan plan = PlanTest(Gpt2Small(), OptionsOf(1, 0, DType::kBf16));
  StepPlan alone = plan;
  alone.evaluate = {};
  ASSERT_EQ(AssignOffsets(alone), absl::OkStatus());
  EXPECT_EQ(alone.arena_bytes, plan.arena_bytes);
}

TEST(Planner, SlackIsSmall) {
  for (int64_t accumulation : {1, 4}) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      PlanOptions options = OptionsOf(1, 0, dtype);
      options.sequence = 512;
      options.accumulation = accumulation;
      const StepPlan plan = PlanTest(Gpt2Small(), options);
      EXPECT_LT(static_cast<double>(plan.slack_bytes),
                0.001 * static_cast<double>(plan.arena_bytes));
    }
  }
}

// With one micro-step activations use the bytes of gradients that are not there yet.
TEST(Planner, WithoutAccumulationGradientsLiveOnlyWhileTheyMust) {
  PlanOptions options = OptionsOf(1, 0, DType::kBf16);
  options.sequence = 512;
  const StepPlan kept = PlanTest(Gpt2Small(), options);
  options.accumulation = 1;
  const StepPlan plan = PlanTest(Gpt2Small(), options);
  int64_t gradients = 0;
  for (const FlatGroup& group : plan.groups) {
    EXPECT_FALSE(plan.buffers[group.gradient_buffer].persistent);
    gradients += group.padded_elements * 4;
  }
  EXPECT_EQ(gradients, BytesOfClass(kept, BufferClass::kGradients));
  EXPECT_LT(plan.arena_bytes, kept.arena_bytes - gradients / 2);
}

TEST(Planner, GradientsWithPaddingKeepTheirBytes) {
  PlanOptions options = OptionsOf(1, 0, DType::kBf16);
  options.accumulation = 1;
  const StepPlan plan = PlanTest({.width = 24, .heads = 3}, options);
  for (const FlatGroup& group : plan.groups) {
    EXPECT_EQ(plan.buffers[group.gradient_buffer].persistent,
              group.padded_elements != group.elements);
  }
  EXPECT_TRUE(plan.buffers[plan.groups.back().gradient_buffer].persistent);
}

TEST(Planner, LargeModelsHaveAGroupForEachLayer) {
  TestModel model = Gpt2Small();
  model.layers = 48;
  EXPECT_EQ(PlanTest(model, OptionsOf(8, 1, DType::kBf16)).groups.size(), 50u);
}

TEST(Planner, GenerationHoldsParametersAndCaches) {
  PlanOptions options = OptionsOf(1, 0, DType::kBf16);
  options.micro_batch = 1;
  const absl::StatusOr<StepPlan> plan = PlanGeneration(SpecOf({}).model(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int64_t caches = 0;
  for (const Buffer& buffer : plan->buffers) {
    if (buffer.persistent && buffer.buffer_class == BufferClass::kActivations) {
      caches += buffer.bytes;
    }
  }
  const TestModel model;
  EXPECT_EQ(caches, model.layers * 2 * model.width * options.sequence * 2);
  EXPECT_GT(BytesOfClass(*plan, BufferClass::kActivations), caches);
  EXPECT_TRUE(plan->train.ops.empty());
  EXPECT_EQ(BytesOfClass(*plan, BufferClass::kGradients), 0);
  EXPECT_EQ(BytesOfClass(*plan, BufferClass::kOptimizer), 0);
  EXPECT_NE(plan->prompt.graph.logits, graph::kNoValue);
  EXPECT_NE(plan->next.graph.logits, graph::kNoValue);
  EXPECT_TRUE(plan->evaluate.ops.empty());
}

// What is not kept does not grow with the text.
TEST(Planner, GenerationsActivationsAreOfOneChunk) {
  PlanOptions options{.threads = 2};
  int64_t transient[2];
  for (int i : {0, 1}) {
    options.sequence = i == 0 ? 512 : 4096;
    const absl::StatusOr<StepPlan> plan =
        PlanGeneration(SpecOf({.context = 4096}).model(), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    transient[i] = plan->arena_bytes;
    for (const Buffer& buffer : plan->buffers) {
      if (buffer.persistent) transient[i] -= (buffer.bytes + 63) / 64 * 64;
    }
  }
  EXPECT_EQ(transient[0], transient[1]);
}

TEST(Planner, RefusesWhatCannotBePlanned) {
  PlanOptions options = OptionsOf(1, 0, DType::kF32);
  options.sequence = 33;
  EXPECT_THAT(PlanTraining(SpecOf({}), options).status().message(), HasSubstr("33"));
  EXPECT_THAT(PlanTraining(SpecOf({.heads = 5}), OptionsOf(1, 0, DType::kF32)).status().message(),
              HasSubstr("model.gpt2.heads"));
  EXPECT_THAT(PlanTraining(SpecOf({}), OptionsOf(1, 4, DType::kF32)).status().message(),
              HasSubstr("train.zero.stage"));
}

TEST(Planner, OptionsComeFromTheSpec) {
  v1::JobSpec spec = SpecOf({});
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_data()->set_sequence_length(32);
  spec.mutable_train()->mutable_zero()->set_stage(1);
  spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  spec.mutable_train()->mutable_batch()->set_global(24);
  spec.mutable_train()->mutable_batch()->set_micro(4);
  const absl::StatusOr<PlanOptions> options = OptionsFromSpec(spec, 3);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->world, 2);
  EXPECT_EQ(options->accumulation, 3);
  EXPECT_EQ(options->compute_dtype, DType::kBf16);
  EXPECT_EQ(options->threads, 3);
  spec.mutable_train()->mutable_batch()->set_global(25);
  EXPECT_EQ(OptionsFromSpec(spec, 3).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Printer, JsonHasWhatTheCommandLineDocuments) {
  const StepPlan plan = PlanTest({}, OptionsOf(2, 1, DType::kBf16));
  const int64_t copy = SnapshotBytes(plan);
  RankPlace place = {.memory_bytes = plan.arena_bytes + copy};
  const auto json = nlohmann::json::parse(PlanJson(plan, {.place = place, .schedule = true}));
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["snapshot_bytes"], copy);
  EXPECT_EQ(json["required_bytes"], plan.arena_bytes + copy);
  place.memory_bytes -= 1;
  EXPECT_EQ(nlohmann::json::parse(PlanJson(plan, {.place = place}))["fits"], false);
  place.host_memory = false;
  EXPECT_EQ(nlohmann::json::parse(PlanJson(plan, {.place = place}))["fits"], true);
  int64_t sum = 0;
  for (const auto& [name, bytes] : json["per_rank"].items()) {
    if (name != "total") sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(json["per_rank"]["total"], plan.arena_bytes);
  EXPECT_EQ(sum, plan.arena_bytes);
  EXPECT_EQ(json["parameters"], plan.parameters);
  EXPECT_EQ(json["ops"].size(), plan.train.ops.size());
  EXPECT_FALSE(nlohmann::json::parse(PlanJson(plan)).contains("fits"));
  EXPECT_FALSE(json.contains("expected"));
  const StepEstimate estimate = EstimateStep(plan, *BuiltInProfile("h200"));
  const auto timed =
      nlohmann::json::parse(PlanJson(plan, {.estimate = estimate, .device = "h200"}));
  EXPECT_EQ(timed["expected"]["seconds"], estimate.seconds);
  EXPECT_EQ(timed["expected"]["bound"], Name(estimate.bound));
}

TEST(Printer, TableSaysWhetherItFits) {
  const StepPlan plan = PlanTest({}, OptionsOf(1, 0, DType::kF32));
  const RankPlace place = {.memory_bytes = plan.arena_bytes};
  const std::string table = PlanTable(plan, {.place = place, .schedule = true});
  EXPECT_THAT(table, HasSubstr("DOES NOT FIT"));
  EXPECT_THAT(table, HasSubstr("optimizer"));
  EXPECT_THAT(table, HasSubstr("lm_head_loss_backward"));
}

}  // namespace
}  // namespace milepost::plan
