// Plans of models with further heads: the memory and arithmetic that they add, and that heads over
// one trunk do not write over what another still reads.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/spec/parse.h"
#include "engine/plan/accesses.h"
#include "engine/plan/testing/verify_fixture.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

v1::JobSpec WithHeads(int count) {
  v1::JobSpec spec = SpecOf({});
  for (int i = 0; i < count; ++i) {
    v1::TaskHeadSpec& head = *spec.mutable_model()->add_heads();
    head.set_name(absl::StrCat("task", i));
    head.set_classes(10 + i);
  }
  return spec;
}

StepPlan PlanOf(int heads, int world, int stage, Recompute recompute = Recompute::kNone) {
  PlanOptions options = OptionsOf(world, stage, DType::kBf16);
  options.recompute = recompute;
  absl::StatusOr<StepPlan> plan = PlanTraining(WithHeads(heads), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(TaskHeadsPlan, ExampleHasItsHeads) {
  const auto spec = LoadJobSpec("examples/heads-tiny.yaml");  // tests run in the source folder
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto options = OptionsFromSpec(*spec, 2);
  ASSERT_TRUE(options.ok()) << options.status();
  const auto plan = PlanTraining(*spec, *options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  v1::JobSpec without = *spec;
  without.mutable_model()->clear_heads();
  const auto alone = PlanTraining(without, *options);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(plan->parameters - alone->parameters, (16 + 2) * (144 + 1));
  // Logits, the weight's and the input's gradient, of every row.
  const double rows = 8.0 * 128;
  EXPECT_DOUBLE_EQ(plan->flops_per_step - alone->flops_per_step, 3 * 2 * rows * 144 * (16 + 2));
  EXPECT_EQ(plan->loss_heads, 3);
  EXPECT_EQ(plan->train.graph.losses[1].name, "word_length");
  EXPECT_EQ(plan->train.graph.losses[1].weight, 0.5);
}

TEST(TaskHeadsPlan, IsVerifiedEverywhere) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (int stage : {0, 1, 2, 3}) {
      const StepPlan plan = PlanOf(7, stage == 0 ? 1 : 3, stage, recompute);
      EXPECT_EQ(Verify(plan), absl::OkStatus());
      EXPECT_EQ(plan.loss_heads, 8);
    }
  }
}

// New heads on a trunk that stays as it is.
TEST(TaskHeadsPlan, OfAFrozenTrunk) {
  v1::JobSpec spec = WithHeads(2);
  v1::ParameterGroupSpec& group = *spec.mutable_train()->mutable_optimizer()->add_groups();
  group.set_match("transformer.*");
  group.set_freeze(true);
  const auto sharded = PlanTraining(spec, OptionsOf(2, 3, DType::kF32));
  EXPECT_TRUE(sharded.ok()) << sharded.status();
  const auto plan = PlanTraining(spec, OptionsOf(1, 0, DType::kF32));
  ASSERT_TRUE(plan.ok()) << plan.status();
  int backward = 0;
  for (const PlannedOp& op : plan->train.ops) {
    backward += op.op.phase == graph::Phase::kBackward ? 1 : 0;
  }
  EXPECT_EQ(backward, 3);  // the losses, and nothing of the trunk
}

// All heads after the first to run add in the same bytes, so that another head costs no activation.
TEST(TaskHeadsPlan, AddInOnePlace) {
  const StepPlan plan = PlanOf(3, 1, 0);
  Place place;
  int heads = 0;
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.kind != OpKind::kLmHeadLossBackward) continue;
    const Place& dx = plan.train.places[op.op.outputs[1].value];
    const bool first = heads++ == 0;
    EXPECT_EQ(op.op.inputs[4] == graph::kNoValue, first);
    if (!first) {
      EXPECT_EQ(plan.buffers[dx.buffer].offset + dx.offset,
                plan.buffers[place.buffer].offset + place.offset);
    }
    place = dx;
  }
  EXPECT_EQ(heads, 4);
}

// The first to run has no other's gradient to add to, so its op may write over x: but not while
// another head reads that.
TEST(TaskHeadsPlan, OverwritingASharedInputIsRefused) {
  StepPlan plan = PlanOf(1, 1, 0);
  Program& program = plan.train;
  const int first = FindOp(program, OpKind::kLmHeadLossBackward);
  const graph::Op& op = program.ops[first].op;
  const graph::ValueId dx = op.outputs[1].value;
  ASSERT_EQ(op.outputs[1].may_overwrite, op.inputs[0]);
  EXPECT_NE(program.places[dx].buffer, program.places[op.inputs[0]].buffer);
  program.places[dx] = program.places[op.inputs[0]];
  for (PlannedOp& planned : program.ops) planned.accesses = OpAccesses(plan, program, planned);
  ExpectRefused(plan, "dx over x that the other head reads", "after its bytes are reused");
}

}  // namespace
}  // namespace milepost::plan
