// Plans that generate, and ways to break them.
#include "engine/plan/testing/verify_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using graph::ValueKind;
using graph::WriteMode;

StepPlan GenerationPlan() {
  PlanOptions options{.compute_dtype = DType::kBf16, .sequence = 32, .threads = 2};
  absl::StatusOr<StepPlan> plan = PlanGeneration(SpecOf({}).model(), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

graph::ValueId FirstCache(const Program& program) {
  for (size_t id = 0; id < program.graph.values.size(); ++id) {
    if (program.graph.values[id].kind == ValueKind::kCache) return static_cast<graph::ValueId>(id);
  }
  ADD_FAILURE() << "no cache";
  return 0;
}

TEST(GenerationPlan, BothProgramsUseTheSameCachesAndParameters) {
  const StepPlan plan = GenerationPlan();
  EXPECT_TRUE(Verify(plan).ok());
  const graph::ValueId cache = FirstCache(plan.prompt);
  EXPECT_EQ(plan.prompt.graph.values[cache].shape, (graph::Shape{1, 2, 4, 32, 16}));
  EXPECT_EQ(plan.prompt.places[cache].buffer, plan.next.places[FirstCache(plan.next)].buffer);
  EXPECT_EQ(plan.prompt.graph.values[plan.prompt.graph.Input("tokens")].shape[0], 32);
  EXPECT_EQ(plan.next.graph.values[plan.next.graph.Input("tokens")].shape[0], 1);
}

TEST(GenerationPlan, SeveralTextsHaveCachesOfTheirOwn) {
  PlanOptions options{.compute_dtype = DType::kBf16, .sequence = 32, .texts = 5, .scores = true};
  const absl::StatusOr<StepPlan> plan = PlanGeneration(SpecOf({}).model(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const Program* program : {&plan->prompt, &plan->next, &plan->score}) {
    EXPECT_EQ(program->graph.values[FirstCache(*program)].shape, (graph::Shape{5, 2, 4, 32, 16}));
  }
  const graph::Graph& next = plan->next.graph;
  EXPECT_EQ(next.values[next.logits].shape[0], 5);
  EXPECT_EQ(next.values[next.Input("texts")].shape, (graph::Shape{5}));
  const graph::Graph& prompt = plan->prompt.graph;
  EXPECT_EQ(prompt.values[prompt.logits].shape[0], 1);
  EXPECT_EQ(GenerationPlan().prompt.graph.Input("texts"), graph::kNoValue);
}

TEST(GenerationPlan, VerifierSeesBrokenCaches) {
  const StepPlan valid = GenerationPlan();
  const graph::ValueId cache = FirstCache(valid.next);
  const int op = FindOp(valid.next, OpKind::kCachedAttention);
  StepPlan plan = valid;
  plan.buffers[plan.next.places[cache].buffer].persistent = false;
  ExpectRefused(plan, "a cache that does not last", "persistent");
  plan = valid;
  plan.buffers[plan.next.places[cache].buffer].bytes -= 64;
  ExpectRefused(plan, "a cache that is too small", "size");
  plan = valid;
  plan.next.graph.values[cache].name += "'";
  ExpectRefused(plan, "caches that only one program has", "cache");
  plan = valid;
  plan.next.ops[op].op.outputs[1].mode = WriteMode::kAssign;
  ExpectRefused(plan, "a cache that is assigned", "not once");
  plan = valid;
  plan.next.ops[op].op.outputs[1].value = graph::kNoValue;
  ExpectRefused(plan, "a cache that is not written");
  plan = valid;
  plan.next.graph.values[cache].kind = ValueKind::kActivation;
  ExpectRefused(plan, "a cache that is not called one");
  plan = valid;
  const int second = [&] {
    for (int i = op + 1;; ++i) {
      if (plan.next.ops[i].op.kind == OpKind::kCachedAttention) return i;
    }
  }();
  std::swap(plan.next.places[plan.next.ops[op].op.inputs[2]],
            plan.next.places[plan.next.ops[second].op.inputs[2]]);
  ExpectRefused(plan, "another layer's cache", "differ");
}

}  // namespace
}  // namespace milepost::plan
