#include "engine/plan/testing/plan_fixture.h"

#include "engine/plan/estimates/estimate.h"

#include <algorithm>
#include <cmath>

#include "engine/plan/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// A second for 1 FLOP, 1 byte, or 1 byte on the wire; ops start at once.
DeviceProfile Unit() {
  DeviceProfile profile;
  profile.name = "unit";
  profile.matmul["F32"] = {1, 2};
  profile.memory_bandwidth = 1;
  profile.host_bandwidth = 1;
  profile.network_bandwidth = 1;
  return profile;
}

struct FakeOp {
  Stream stream = Stream::kCompute;
  When when = When::kEveryMicroStep;
  std::vector<int32_t> wait_for;
  double flops = 0;
  double bytes = 0;
  double wire = 0;
};

StepPlan PlanOf(const std::vector<FakeOp>& ops, int64_t accumulation = 1) {
  StepPlan plan;
  plan.options = {.world = 2, .sequence = 10, .accumulation = accumulation};
  for (const FakeOp& fake : ops) {
    PlannedOp op;
    op.op.kind = fake.stream == Stream::kCompute ? OpKind::kLinear : OpKind::kReduceGradients;
    op.stream = fake.stream;
    op.when = fake.when;
    op.wait_for = fake.wait_for;
    op.flops = fake.flops;
    op.bytes = fake.bytes;
    op.wire_bytes = fake.wire;
    plan.train.ops.push_back(std::move(op));
    plan.flops_per_step += fake.flops;
  }
  return plan;
}

TEST(Estimate, AGpuTakesTheLargerOfFlopsAndBytes) {
  StepPlan plan = PlanOf({{.flops = 5, .bytes = 3}, {.flops = 1, .bytes = 4}});
  plan.options.device = DeviceKind::kCuda;
  const StepEstimate e = EstimateStep(plan, Unit());
  EXPECT_DOUBLE_EQ(e.seconds, 9);
  EXPECT_DOUBLE_EQ(e.flop_seconds, 5);
  EXPECT_DOUBLE_EQ(e.memory_seconds, 4);
  EXPECT_DOUBLE_EQ(e.tokens_per_second, 2 * 10 / 9.0);
  EXPECT_DOUBLE_EQ(e.mfu, 6 / (9.0 * 2));
  EXPECT_EQ(e.bound, Bound::kCompute);
}

TEST(Estimate, ACpuLoadsAndComputesInTurn) {
  const StepEstimate e =
      EstimateStep(PlanOf({{.flops = 5, .bytes = 3}, {.flops = 1, .bytes = 4}}), Unit());
  EXPECT_DOUBLE_EQ(e.seconds, 13);
  EXPECT_DOUBLE_EQ(e.flop_seconds, 6);
  EXPECT_DOUBLE_EQ(e.memory_seconds, 7);
  EXPECT_EQ(e.bound, Bound::kMemory);
}

// 4 rows of a product reach a quarter, where 12 reach half.
TEST(Estimate, SmallProductsReachLess) {
  StepPlan plan = PlanOf({{.flops = 3}});
  plan.train.graph.values = {{.shape = {4, 100}}, {.shape = {100, 50}}, {.shape = {4, 50}}};
  plan.train.ops[0].op.inputs = {0, 1};
  plan.train.ops[0].op.outputs = {{.value = 2}};
  DeviceProfile profile = Unit();
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 3);
  profile.matmul["F32"].product_half = 12;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 3 * 4);
  // Of a weight of patches [50, 3, 4, 5], with 60 elements of an image each.
  plan.train.graph.values[1].shape = {50, 3, 4, 5};
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 3 * 4);
  // A head that makes its logits of two rows at a time.
  plan.train.ops[0].op.kind = OpKind::kLmHeadLoss;
  plan.train.ops[0].op.attributes.chunk_rows = 2;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 3 * 7);
}

// With 4 rows twice as long, where it is added to what another micro-batch has left.
TEST(Estimate, AnAddedGradientIsWaitedFor) {
  DeviceProfile profile = Unit();
  profile.matmul["F32"].accumulate_half = 4;
  for (const int64_t accumulation : {1, 2}) {
    StepPlan plan = PlanOf({{.flops = 3}}, accumulation);
    plan.train.graph.values = {{.shape = {4, 100}}, {.shape = {4, 50}}, {.shape = {100, 50}}};
    plan.train.ops[0].op.inputs = {0, 1};
    plan.train.ops[0].op.outputs = {{.value = 2}};
    EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 3.0 * accumulation);
    plan.train.ops[0].op.kind = OpKind::kLinearBackwardWeight;
    EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, accumulation == 1 ? 3.0 : 12.0);
  }
}

// The reduction of the first op's result runs beside the second op.
TEST(Estimate, HidesCommunicationBehindComputation) {
  std::vector<FakeOp> ops = {{.flops = 4},
                             {.stream = Stream::kCommunication, .wait_for = {0}, .wire = 3},
                             {.flops = 5},
                             {.wait_for = {1}, .flops = 1}};
  StepEstimate e = EstimateStep(PlanOf(ops), Unit());
  EXPECT_DOUBLE_EQ(e.seconds, 10);
  EXPECT_DOUBLE_EQ(e.exposed_seconds, 0);
  EXPECT_DOUBLE_EQ(e.communication_seconds, 3);
  ops[1].wire = 20;  // 15 more than the op beside it
  e = EstimateStep(PlanOf(ops), Unit());
  EXPECT_DOUBLE_EQ(e.seconds, 4 + 20 + 1);
  EXPECT_DOUBLE_EQ(e.exposed_seconds, 15);
  EXPECT_EQ(e.bound, Bound::kCommunication);
}

TEST(Estimate, WithoutOverlapStreamsTakeTurns) {
  const StepPlan plan = PlanOf(
      {{.flops = 4}, {.stream = Stream::kCommunication, .wait_for = {0}, .wire = 3}, {.flops = 5}});
  DeviceProfile profile = Unit();
  profile.overlap = 0;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 12);
  profile.overlap = 0.5;  // both at 3/4 for 4 s, then 2 s of the op alone
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 4 + 4 + 2);
}

// Two micro-steps: only the last one reduces, and what it reduces may go on into the update.
TEST(Estimate, RunsMicroStepsAsTheExecutorDoes) {
  const std::vector<FakeOp> ops = {
      {.flops = 2},
      {.stream = Stream::kCommunication, .when = When::kLastMicroStep, .wait_for = {0}, .wire = 10},
      {.flops = 3},
      {.when = When::kUpdate, .flops = 4},
      {.when = When::kUpdate, .wait_for = {1}, .flops = 1}};
  const StepEstimate e = EstimateStep(PlanOf(ops, 3), Unit());
  EXPECT_DOUBLE_EQ(e.seconds, 2 * 5 + (2 + 10 + 1));
  EXPECT_DOUBLE_EQ(e.flop_seconds, 3 * 5 + 5);
  EXPECT_DOUBLE_EQ(e.flop_seconds + e.memory_seconds + e.start_seconds + e.exposed_seconds,
                   e.seconds);
}

// Links: within a host, across with every rank's adapter, and replicas with fewer ranks a host.
// Each step has a part of the outer one that follows many of them.
TEST(Estimate, StepsShareAnOuterStep) {
  StepPlan plan = PlanOf({{.flops = 10}}, /*accumulation=*/2);
  const double alone = EstimateStep(plan, Unit()).seconds;
  plan.options.islands = 2;
  plan.options.outer_every = 4;
  PlannedOp sum, update;
  sum.op.kind = OpKind::kAverageIslands;
  sum.stream = Stream::kCommunication;
  sum.wire_bytes = 8;
  update.op.kind = OpKind::kOuterUpdate;
  update.wait_for = {0};
  update.bytes = 4;
  plan.outer.ops = {sum, update};
  const StepEstimate e = EstimateStep(plan, Unit());
  EXPECT_DOUBLE_EQ(e.outer_seconds, 12);
  EXPECT_DOUBLE_EQ(e.seconds, alone + 3);
  EXPECT_DOUBLE_EQ(e.exposed_seconds, 3);
  EXPECT_DOUBLE_EQ(e.communication_seconds, 3);
  EXPECT_DOUBLE_EQ(e.tokens_per_second, 2 * 2 * 2 * 10 / e.seconds) << "of both islands";
}

TEST(Estimate, CollectivesUseTheLinksTheyCross) {
  DeviceProfile profile = Unit();
  profile.host_bandwidth = 100;
  profile.network_bandwidth = 2;
  profile.ranks_per_host = 4;
  StepPlan plan = PlanOf({{.stream = Stream::kCommunication, .wire = 200}});
  const auto seconds = [&](int world, int stage, int group, OpKind kind) {
    plan.options.world = world;
    plan.options.zero_stage = stage;
    plan.options.shard_ranks = group;
    plan.train.ops[0].op.kind = kind;
    return EstimateStep(plan, profile).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(4, 1, 0, OpKind::kReduceGradients), 2);   // on one host
  EXPECT_DOUBLE_EQ(seconds(8, 1, 0, OpKind::kReduceGradients), 25);  // 4 adapters of 2
  EXPECT_DOUBLE_EQ(seconds(8, 0, 4, OpKind::kReduceGradients), 25);  // nothing is sharded
  EXPECT_DOUBLE_EQ(seconds(8, 1, 4, OpKind::kReduceGradients), 2);   // group of a host
  EXPECT_DOUBLE_EQ(seconds(8, 1, 4, OpKind::kReduceReplicas), 100);  // one rank of each host
  EXPECT_DOUBLE_EQ(seconds(8, 1, 2, OpKind::kReduceReplicas), 50);   // two of each
  EXPECT_DOUBLE_EQ(seconds(8, 1, 4, OpKind::kReduceScalars), 25);    // always all ranks
  profile.collective_seconds = 1;
  EXPECT_DOUBLE_EQ(seconds(8, 1, 0, OpKind::kReduceGradients), 28);  // log2(8) ways
}

// Two layers of a mesh: each product's sum over the tensor ranks is waited for at once, by the link
// within the host; gradients go to the other host beside the next product, and the last sum waits
// until the communication stream has sent them.
TEST(Estimate, SumsOfTensorRanksAreWaitedForAtOnce) {
  StepPlan plan = PlanOf({{.flops = 4},
                          {.stream = Stream::kCommunication, .wait_for = {0}, .wire = 20},
                          {.wait_for = {1}, .flops = 4},
                          {.stream = Stream::kCommunication, .wait_for = {2}, .wire = 10},
                          {.wait_for = {}, .flops = 1},
                          {.stream = Stream::kCommunication, .wait_for = {4}, .wire = 30},
                          {.wait_for = {5}, .flops = 2}});
  plan.options.tensor = 2;
  for (const int sum : {1, 5}) plan.train.ops[sum].op.kind = OpKind::kTensorReduce;
  DeviceProfile profile = Unit();
  profile.host_bandwidth = 10;
  profile.ranks_per_host = 2;  // both tensor ranks; data ranks are on hosts of their own
  const StepEstimate e = EstimateStep(plan, profile);
  // 4, sum 2, 4; then the gradient's 10 seconds hide 1, the sum's 3 follow, and 2.
  EXPECT_DOUBLE_EQ(e.seconds, 4 + 2 + 4 + 10 + 3 + 2);
  EXPECT_DOUBLE_EQ(e.communication_seconds, 2 + 10 + 3);
  EXPECT_DOUBLE_EQ(e.exposed_seconds, 2 + 9 + 3);
}

// Heads of 16 are at (16 / 128)^(1/3) = 1/2 of the best, and 1500 positions at 1500 / (1500 + 500).
TEST(Estimate, ShortSequencesAndNarrowHeadsSlowDownAGpusAttention) {
  StepPlan plan = PlanOf({{.flops = 3}});
  graph::Op& op = plan.train.ops[0].op;
  op.kind = OpKind::kAttention;
  op.attributes.heads = 2;
  op.attributes.sequence = 1500;
  plan.train.graph.values.push_back({.shape = {1500, 2 * 16}});
  op.outputs = {{.value = 0}};
  DeviceProfile profile = Unit();
  profile.attention_fraction = 0.5;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 6);
  plan.options.device = DeviceKind::kCuda;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 6 / (0.5 * 0.75));
  op.attributes.window = 250;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 6 / (0.5 / 3));
  op.attributes.window = 0;
  op.attributes.causal = false;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 6 / (0.5 * 3000 / 3500));
}

// 64 rows of an expert are half as fast as many.
TEST(Estimate, ProductsOfExpertsReachLessOnAGpu) {
  StepPlan plan = PlanOf({{.flops = 3}});
  graph::Op& op = plan.train.ops[0].op;
  op.kind = OpKind::kExpertLinear;
  op.attributes.experts.count = 8;
  op.inputs = {0};
  plan.train.graph.values.push_back({.shape = {8 * 64, 32}});
  EXPECT_DOUBLE_EQ(EstimateStep(plan, Unit()).seconds, 3);
  plan.options.device = DeviceKind::kCuda;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, Unit()).seconds, 3 / (0.5 * 0.5));
}

TEST(Estimate, AttentionHasAPartOfEachTypesRate) {
  StepPlan plan = PlanOf({{.flops = 3}});
  plan.train.ops[0].op.kind = OpKind::kAttention;
  DeviceProfile profile = Unit();
  profile.attention_fraction = 0.5;
  profile.matmul["BF16"] = {.achieved = 6, .peak = 6, .attention = 0.25};
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 6);
  plan.options.compute_dtype = DType::kBf16;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 2);
  // And less of it, the fewer positions one sees.
  profile.matmul["BF16"].attention_half = 30;
  plan.train.ops[0].op.attributes.sequence = 10;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 2 * 4);
  plan.train.ops[0].op.attributes.causal = false;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, profile).seconds, 2 * 2.5);
}

// Two stages of one micro-batch: 3 and 5 forwards, 6 and 10 backwards, 2 on the way in each
// direction; 7 at the end of the slower one.
TEST(Estimate, ThePipelineTakesAsLongAsItsStagesTogether) {
  const PipelineShape shape = {.stages = 2, .micro_batches = 1};
  const std::vector<StageSeconds> stages = {{.passes = {{3, 6, 0}}, .transfer = 2, .rest = 1},
                                            {.passes = {{5, 10, 0}}, .transfer = 1, .rest = 7}};
  EXPECT_DOUBLE_EQ(PipelineSeconds(shape, stages), 3 + 2 + 5 + 10 + 2 + 6 + 7);
  // With many micro-batches as long as the slower one computes, and a little more.
  const double many = PipelineSeconds({.stages = 2, .micro_batches = 100}, stages);
  EXPECT_GT(many, 100 * 15);
  EXPECT_LT(many, 100 * 15 + 30);
}

// Runs of blocks that take 1, 2, 3 and 4 forward and as long again backward, one after the other:
// those of stage 0 are the first and the third.
TEST(Estimate, AnInterleavedStepHasEveryRunOfBlocks) {
  const std::vector<StageSeconds> stages = {{.passes = {{1, 1, 0}, {3, 3, 0}}, .transfer = 0.5},
                                            {.passes = {{2, 2, 0}, {4, 4, 0}}, .rest = 7}};
  const PipelineShape shape = {PipelineSchedule::kInterleaved, /*stages=*/2, /*micro_batches=*/1,
                               /*chunks=*/2};
  EXPECT_DOUBLE_EQ(PipelineSeconds(shape, stages), 2 * (1 + 2 + 3 + 4) + 6 * 0.5 + 7);
}

// What rounds gradients stands on the communication stream, and takes the memory's time.
TEST(Estimate, WhatFollowsACollectiveTakesItsBytes) {
  StepPlan plan = PlanOf({{.flops = 1},
                          {.stream = Stream::kCommunication, .wait_for = {0}, .wire = 3},
                          {.stream = Stream::kCommunication, .bytes = 6},
                          {.when = When::kUpdate, .wait_for = {2}, .flops = 1}});
  plan.train.ops[2].op.kind = OpKind::kRoundGradients;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, Unit()).seconds, 1 + 3 + 6 + 1);
}

absl::StatusOr<StepPlan> Gpt2Plan(int world, int stage, int64_t micro) {
  PlanOptions options = OptionsOf(world, stage, DType::kBf16);
  options.sequence = 1024;
  options.micro_batch = micro;
  options.accumulation = 1;
  return PlanTraining(SpecOf(Gpt2Small()), options);
}

TEST(Estimate, Gpt2OnAnH200IsNearItsFloor) {
  const auto plan = Gpt2Plan(1, 0, 16);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const DeviceProfile h200 = *BuiltInProfile("h200");
  const StepEstimate e = EstimateStep(*plan, h200);
  const double floor = plan->flops_per_step / RateOf(h200, DType::kBf16).achieved;
  EXPECT_GT(e.seconds, floor);
  EXPECT_LT(e.seconds, 3 * floor);
  EXPECT_EQ(e.exposed_seconds, 0);
  EXPECT_GT(e.mfu, 0.25);
  EXPECT_LT(e.mfu, 0.8);
  EXPECT_NE(e.bound, Bound::kCommunication);
}

TEST(Estimate, ASlowNetworkBoundsTheStep) {
  const auto plan = Gpt2Plan(16, 2, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  DeviceProfile profile = *BuiltInProfile("h200");
  profile.network_bandwidth = 1e7;
  const StepEstimate slow = EstimateStep(*plan, profile);
  EXPECT_EQ(slow.bound, Bound::kCommunication);
  EXPECT_GE(slow.seconds, plan->wire_bytes_per_step / (8 * profile.network_bandwidth));
  profile.network_bandwidth = 1e13;
  profile.host_bandwidth = 1e13;
  EXPECT_LT(EstimateStep(*plan, profile).seconds, slow.seconds / 10);
}

}  // namespace
}  // namespace milepost::plan
