#include "engine/plan/passes/rows_pass.h"

#include <string>
#include <vector>

#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using ::testing::HasSubstr;

constexpr int64_t kRows = 2 * 16;  // OptionsOf

absl::StatusOr<StepPlan> PlanAmong(int tensor, const v1::JobSpec& spec = SpecOf({.layers = 3}),
                                   Recompute recompute = Recompute::kNone) {
  PlanOptions options = OptionsOf(1, 0, DType::kF32);
  options.tensor = tensor;
  options.recompute = recompute;
  return PlanTraining(spec, options);
}

int CountOf(const StepPlan& plan, OpKind kind, graph::Phase phase) {
  int count = 0;
  for (const PlannedOp& op : plan.train.ops) count += op.op.kind == kind && op.op.phase == phase;
  return count;
}

int64_t RowsOfFirst(const StepPlan& plan, OpKind kind) {
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.kind == kind) return plan.train.graph.values[op.op.outputs[0].value].shape[0];
  }
  ADD_FAILURE() << "no " << graph::Name(kind);
  return 0;
}

PlannedOp* FirstIn(StepPlan& plan, OpKind kind, graph::Phase phase = graph::Phase::kForward) {
  for (PlannedOp& op : plan.train.ops) {
    if (op.op.kind == kind && op.op.phase == phase) return &op;
  }
  ADD_FAILURE() << "no " << graph::Name(kind);
  return nullptr;
}

int64_t Activations(const StepPlan& plan) {
  return plan.bytes_by_class[static_cast<int>(BufferClass::kActivations)];
}

TEST(RowsPass, ARankHasItsRowsBetweenDividedLayers) {
  const absl::StatusOr<StepPlan> plan = PlanAmong(2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(RowsOfFirst(*plan, OpKind::kEmbedding), kRows);
  for (const OpKind own : {OpKind::kLayerNorm, OpKind::kResidualLayerNorm, OpKind::kTensorScatter,
                           OpKind::kResidualLayerNormBackward}) {
    EXPECT_EQ(RowsOfFirst(*plan, own), kRows / 2) << graph::Name(own);
  }
  EXPECT_EQ(RowsOfFirst(*plan, OpKind::kLinear), kRows);
  using graph::Phase;
  // In front of two layers of each block, and of the head; and what ranks know of its logits.
  EXPECT_EQ(CountOf(*plan, OpKind::kTensorGather, Phase::kForward), 3 * 2 + 1 + 1);
  EXPECT_EQ(CountOf(*plan, OpKind::kTensorRows, Phase::kForward), 1);  // of the embedding
  EXPECT_EQ(CountOf(*plan, OpKind::kTensorGather, Phase::kBackward), 3 * 2 + 1);
  EXPECT_EQ(CountOf(*plan, OpKind::kTensorRows, Phase::kBackward), 0);
  EXPECT_EQ(CountOf(*plan, OpKind::kTensorReduce, Phase::kForward), 1);  // the rows of tokens
  EXPECT_EQ(CountOf(*plan, OpKind::kTensorReduce, Phase::kBackward), 0);
}

// Norms, and biases behind the sums: once a step for each block, and for the last norm.
TEST(RowsPass, PartsOfGradientsAreSummedOncePerBlock) {
  absl::StatusOr<StepPlan> plan = PlanAmong(2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> summed;
  for (const PlannedOp& op : plan->train.ops) {
    if (op.op.kind != OpKind::kReduceParts) continue;
    EXPECT_EQ(op.when, When::kLastMicroStep);
    const FlatGroup& group = plan->groups[op.op.attributes.group];
    EXPECT_EQ(op.wire_bytes, 4 * group.padded_elements);
    summed.push_back(group.name);
    EXPECT_EQ(group.elements, (group.name == "ln_f (parts)" ? 2 : 4 + 2) * 64);
  }
  EXPECT_THAT(summed,
              ::testing::ElementsAre("ln_f (parts)", "h.2 (parts)", "h.1 (parts)", "h.0 (parts)"));
}

TEST(RowsPass, RowsThatRanksDoNotDivideStayWhole) {
  PlanOptions options = OptionsOf(1, 0, DType::kF32);
  options.tensor = 2;
  options.micro_batch = 1;
  options.sequence = 15;
  const absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({}), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(RowsOfFirst(*plan, OpKind::kLayerNorm), 15);
  EXPECT_EQ(CountOf(*plan, OpKind::kTensorScatter, graph::Phase::kForward), 0);
}

// Of three samples' halves two tensor ranks would each get one and a half.
TEST(RowsPass, AContextRankHasRunsOfEqualLength) {
  for (const int64_t batch : {2, 3}) {
    PlanOptions options = OptionsOf(2, 0, DType::kF32);
    options.tensor = options.context = 2;
    options.micro_batch = batch;
    const absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({}), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(CountOf(*plan, OpKind::kTensorScatter, graph::Phase::kForward), batch == 2 ? 4 : 0);
  }
}

// What a layer reads is gathered once more where it is not kept.
TEST(RowsPass, GathersAgainWhereItRecomputes) {
  const auto again = [](Recompute recompute) {
    const absl::StatusOr<StepPlan> plan = PlanAmong(2, SpecOf({.layers = 3}), recompute);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return CountOf(*plan, OpKind::kTensorGather, graph::Phase::kRecompute);
  };
  EXPECT_EQ(again(Recompute::kNone), 0);
  EXPECT_EQ(again(Recompute::kSelective), 3 * 2);  // the head still has its rows
  EXPECT_EQ(again(Recompute::kFull), 3 * 2);
}

TEST(RowsPass, ActivationsOfARankAreItsShare) {
  const v1::JobSpec spec = SpecOf({.layers = 8, .width = 128, .heads = 8});
  const auto activations = [&](int tensor) {
    const absl::StatusOr<StepPlan> plan = PlanAmong(tensor, spec, Recompute::kFull);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return static_cast<double>(Activations(*plan));
  };
  EXPECT_LT(activations(4), 0.5 * activations(1));
}

// Of the last stage, which has the head alone, the evaluation has no divided layer; and the head's
// gradient is no sum alone where there are further heads.
TEST(RowsPass, AStageMayHaveNoDividedLayer) {
  for (const bool heads : {false, true}) {
    v1::JobSpec spec = SpecOf(Gpt2Small());
    if (heads) {
      v1::TaskHeadSpec& head = *spec.mutable_model()->add_heads();
      head.set_name("next");
      head.set_classes(2);
    }
    PlanOptions options = OptionsOf(1, 0, DType::kF32);
    options.tensor = 2;
    options.pipeline = 4;
    for (options.stage = 0; options.stage < 4; ++options.stage) {
      const absl::StatusOr<StepPlan> plan = PlanTraining(spec, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const int layers = CountOf(*plan, OpKind::kTensorScatter, graph::Phase::kForward);
      EXPECT_EQ(layers == 0, options.stage == 3);
    }
  }
}

TEST(RowsPass, IsVerified) {
  const absl::StatusOr<StepPlan> plan = PlanAmong(2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Verify(*plan), absl::OkStatus());
  StepPlan half = *plan;  // a layer of this rank's rows alone
  FirstIn(half, OpKind::kLinear)->op.inputs[0] = FirstIn(half, OpKind::kTensorGather)->op.inputs[0];
  EXPECT_THAT(VerifyRows(half, half.train).message(), HasSubstr("some rows, as if it were all"));
  StepPlan all = *plan;  // a norm of all rows
  FirstIn(all, OpKind::kLayerNorm)->op.inputs[0] =
      FirstIn(all, OpKind::kEmbedding)->op.outputs[0].value;
  EXPECT_THAT(VerifyRows(all, all.train).message(), HasSubstr("as if it were this rank's own"));
  StepPlan some = *plan;  // a norm's gradient of some rows
  for (FlatGroup& group : some.groups) group.partial = false;
  EXPECT_THAT(VerifyRows(some, some.train).message(), HasSubstr("more than a tensor rank's part"));
  StepPlan whole = *plan;  // one that all ranks have, added up
  for (FlatGroup& group : whole.groups) group.partial = true;
  EXPECT_THAT(VerifyRows(whole, whole.train).message(), HasSubstr("all of it"));
  StepPlan unsummed = *plan;
  std::erase_if(unsummed.train.ops,
                [](const PlannedOp& op) { return op.op.kind == OpKind::kReduceParts; });
  EXPECT_THAT(VerifyValues(unsummed, unsummed.train).message(),
              HasSubstr("is not summed over tensor ranks"));
  StepPlan twice = *plan;  // what a scatter leaves behind
  PlannedOp* first = FirstIn(twice, OpKind::kTensorScatter);
  const graph::ValueId part = first->op.inputs[0];
  for (PlannedOp& op : twice.train.ops) {
    if (op.op.kind == OpKind::kTensorScatter) op.op.inputs[0] = part;
  }
  EXPECT_THAT(VerifySums(twice, twice.train).message(), HasSubstr("behind its sum"));
  StepPlan bytes = *plan;
  FirstIn(bytes, OpKind::kTensorScatter)->wire_bytes += 16;
  EXPECT_THAT(Verify(bytes).message(), HasSubstr("tensor_scatter sends"));
}

}  // namespace
}  // namespace milepost::plan
