#include "engine/plan/passes/recompute_pass.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using graph::Phase;

StepPlan Plan(const TestModel& model, PlanOptions options, Recompute recompute) {
  options.recompute = recompute;
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf(model), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : StepPlan{};
}

std::multiset<OpKind> Replayed(const StepPlan& plan) {
  std::multiset<OpKind> kinds;
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.phase == Phase::kRecompute) kinds.insert(op.op.kind);
  }
  return kinds;
}

// Forward values of the layers that the backward reads: what is kept.
std::set<std::string> KeptByPass(const StepPlan& plan) {
  std::set<graph::ValueId> forward;
  std::set<std::string> kept;
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.phase == Phase::kForward) {
      for (const graph::Output& output : op.op.outputs) forward.insert(output.value);
      continue;
    }
    for (graph::ValueId input : op.op.inputs) {
      if (!forward.contains(input)) continue;
      const std::string& name = plan.train.graph.values[input].name;
      if (absl::StartsWith(name, "h.")) kept.insert(name);
    }
  }
  return kept;
}

TEST(Recompute, SelectiveReplaysNormsAndActivations) {
  const PlanOptions options = OptionsOf(1, 0, DType::kBf16);
  const StepPlan none = Plan({.layers = 2}, options, Recompute::kNone);
  EXPECT_TRUE(Replayed(none).empty());
  EXPECT_EQ(none.recompute_flops_per_step, 0);
  const StepPlan plan = Plan({.layers = 2}, options, Recompute::kSelective);
  // ln_1, ln_2 and gelu of both layers; residuals are in the kept sums.
  EXPECT_THAT(Replayed(plan),
              testing::UnorderedElementsAre(OpKind::kLayerNorm, OpKind::kLayerNorm, OpKind::kGelu,
                                            OpKind::kLayerNorm, OpKind::kLayerNorm, OpKind::kGelu));
  EXPECT_EQ(plan.recompute_flops_per_step, 0);
  EXPECT_EQ(plan.flops_per_step, none.flops_per_step);
  EXPECT_EQ(
      KeptByPass(plan),
      (std::set<std::string>{"h.0.attn.qkv", "h.0.attn.out", "h.0.attn.out.lse", "h.0.ln_2.sum",
                             "h.0.mlp.fc", "h.1.ln_1.sum", "h.1.attn.qkv", "h.1.attn.out",
                             "h.1.attn.out.lse", "h.1.ln_2.sum", "h.1.mlp.fc"}));
}

TEST(Recompute, FullKeepsTheResidualStreamBetweenBlocks) {
  for (double dropout : {0.0, 0.1}) {
    const StepPlan plan =
        Plan({.layers = 3, .dropout = dropout}, OptionsOf(1, 0, DType::kBf16), Recompute::kFull);
    EXPECT_EQ(KeptByPass(plan), (std::set<std::string>{"h.1.ln_1.sum", "h.2.ln_1.sum"}));
    // All of a layer but its last product, whose output only the next layer reads.
    EXPECT_THAT(Replayed(plan).size(), 3 * 7);
    const double layer = plan.recompute_flops_per_step / 3;
    EXPECT_GT(layer, 0);
    EXPECT_LT(plan.recompute_flops_per_step, plan.flops_per_step / 3);
  }
}

TEST(Recompute, ReplaysRightBeforeTheFirstUse) {
  const StepPlan plan = Plan({.layers = 3}, OptionsOf(1, 0, DType::kBf16), Recompute::kFull);
  int block = graph::kNoBlock;
  std::set<int> seen;
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.phase == Phase::kForward || op.when != When::kEveryMicroStep) continue;
    if (op.op.block != block) {
      EXPECT_TRUE(seen.insert(op.op.block).second) << "block " << op.op.block << " twice";
    }
    block = op.op.block;
  }
}

TEST(Recompute, EveryCombinationVerifies) {
  for (Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    for (int stage : {0, 1, 2, 3}) {
      for (DType dtype : {DType::kF32, DType::kBf16}) {
        for (double dropout : {0.0, 0.1}) {
          SCOPED_TRACE(absl::StrCat("stage ", stage, " ", Name(recompute), " ", dropout));
          const StepPlan plan =
              Plan({.layers = 3, .dropout = dropout}, OptionsOf(3, stage, dtype), recompute);
          EXPECT_EQ(Verify(plan), absl::OkStatus());
        }
      }
    }
  }
}

// Per token of a layer's width, in bf16: 16 kept without recomputation (sums 2, norms 2, qkv 3,
// attention 1, MLP 4 + 4), 10 with selective, 1 with full.
TEST(Recompute, ShrinksActivationsAsFarAsItSays) {
  PlanOptions options = OptionsOf(1, 0, DType::kBf16);
  options.sequence = 1024;
  TestModel model = Gpt2Small();
  const auto layer_bytes = [&](Recompute recompute) {
    model.layers = 12;
    const StepPlan many = Plan(model, options, recompute);
    model.layers = 8;
    const StepPlan few = Plan(model, options, recompute);
    const auto activations = [](const StepPlan& plan) {
      return plan.bytes_by_class[static_cast<int>(BufferClass::kActivations)];
    };
    return static_cast<double>(activations(many) - activations(few)) / 4;
  };
  const double unit = 2.0 * 1024 * 768 * 2;
  EXPECT_NEAR(layer_bytes(Recompute::kNone) / unit, 16, 0.1);
  EXPECT_NEAR(layer_bytes(Recompute::kSelective) / unit, 10, 0.1);
  EXPECT_NEAR(layer_bytes(Recompute::kFull) / unit, 1, 0.1);
}

}  // namespace
}  // namespace milepost::plan
