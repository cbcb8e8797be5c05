#include "engine/plan/passes/gelu_pass.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "engine/ops/reference/reference_interpreter.h"
#include "engine/plan/testing/plan_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using graph::Phase;

StepPlan PlanGelu(const v1::JobSpec& spec, PlanOptions options) {
  absl::StatusOr<StepPlan> plan = PlanTraining(spec, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : StepPlan{};
}

StepPlan PlanGelu(Recompute recompute, bool fuse, DType dtype = DType::kBf16) {
  PlanOptions options = OptionsOf(1, 0, dtype);
  options.recompute = recompute;
  options.fuse_gelu = fuse;
  return PlanGelu(SpecOf(TestModel{.layers = 3}), options);
}

// How many ops there are of a kind and phase, and how many of them are fused.
struct GeluCount {
  int all = 0;
  int fused = 0;
  int without_sums = 0;
  bool operator==(const GeluCount&) const = default;
};
GeluCount CountOf(const Program& program, OpKind kind, Phase phase) {
  GeluCount count;
  for (const PlannedOp& planned : program.ops) {
    const graph::Op& op = planned.op;
    if (op.kind != kind || op.phase != phase) continue;
    ++count.all;
    count.fused += op.attributes.gelu ? 1 : 0;
    count.without_sums += op.outputs[0].value == graph::kNoValue ? 1 : 0;
  }
  return count;
}

TEST(FuseGelu, TakesForwardAndBackward) {
  const StepPlan plan = PlanGelu(Recompute::kNone, true);
  EXPECT_EQ(CountOf(plan.train, OpKind::kLinear, Phase::kForward), (GeluCount{12, 3, 0}));
  EXPECT_EQ(CountOf(plan.train, OpKind::kLinearBackwardInput, Phase::kBackward),
            (GeluCount{12, 3, 0}));
  EXPECT_EQ(CountOf(plan.train, OpKind::kGelu, Phase::kForward), GeluCount{});
  EXPECT_EQ(CountOf(plan.train, OpKind::kGeluBackward, Phase::kBackward), GeluCount{});
  EXPECT_EQ(CountOf(plan.evaluate, OpKind::kLinear, Phase::kForward), (GeluCount{12, 3, 3}));
  EXPECT_EQ(CountOf(plan.evaluate, OpKind::kGelu, Phase::kForward), GeluCount{});
  const StepPlan apart = PlanGelu(Recompute::kNone, false);
  EXPECT_EQ(CountOf(apart.train, OpKind::kGelu, Phase::kForward), (GeluCount{3, 0, 0}));
  EXPECT_EQ(plan.flops_per_step, apart.flops_per_step);
  EXPECT_LE(plan.arena_bytes, apart.arena_bytes);
}

// What selective recomputation drops it still drops, and makes again as before.
TEST(FuseGelu, RespectsRecomputation) {
  const StepPlan selective = PlanGelu(Recompute::kSelective, true);
  EXPECT_EQ(CountOf(selective.train, OpKind::kLinear, Phase::kForward), (GeluCount{12, 3, 0}));
  EXPECT_EQ(CountOf(selective.train, OpKind::kGelu, Phase::kRecompute), (GeluCount{3, 0, 0}));
  EXPECT_EQ(CountOf(selective.train, OpKind::kLinearBackwardInput, Phase::kBackward),
            (GeluCount{12, 3, 0}));
  EXPECT_LE(selective.arena_bytes, PlanGelu(Recompute::kSelective, false).arena_bytes);
  const StepPlan full = PlanGelu(Recompute::kFull, true);
  EXPECT_EQ(CountOf(full.train, OpKind::kLinear, Phase::kForward), (GeluCount{12, 3, 3}));
  EXPECT_EQ(CountOf(full.train, OpKind::kLinear, Phase::kRecompute), (GeluCount{9, 3, 0}));
  EXPECT_EQ(CountOf(full.train, OpKind::kGelu, Phase::kRecompute), GeluCount{});
  EXPECT_LE(full.arena_bytes, PlanGelu(Recompute::kFull, false).arena_bytes);
}

TEST(FuseGelu, LeavesOthersAlone) {
  const StepPlan fp32 = PlanGelu(Recompute::kNone, true, DType::kF32);
  EXPECT_EQ(CountOf(fp32.train, OpKind::kGelu, Phase::kForward), (GeluCount{3, 0, 0}));
  v1::JobSpec spec;  // the exact form
  v1::BertSpec& bert = *spec.mutable_model()->mutable_bert();
  bert.set_layers(2);
  bert.set_width(64);
  bert.set_heads(4);
  bert.set_hidden(128);
  bert.set_context(32);
  bert.set_vocabulary(96);
  bert.set_segments(2);
  PlanOptions options = OptionsOf(1, 0, DType::kBf16);
  options.fuse_gelu = true;
  const StepPlan plan = PlanGelu(spec, options);
  EXPECT_EQ(CountOf(plan.train, OpKind::kLinear, Phase::kForward).fused, 0);
  EXPECT_GE(CountOf(plan.train, OpKind::kGelu, Phase::kForward).all, 2);
}

// In fp64, where nothing is rounded, what is fused computes what was there before.
TEST(FuseGelu, ComputesTheSame) {
  std::map<std::string, std::vector<double>> gradients[2];
  double loss[2];
  for (const bool fuse : {false, true}) {
    const graph::Graph graph = PlanGelu(Recompute::kFull, fuse).train.graph;
    graph::ReferenceInterpreter reference(graph);
    for (const char* name : {"tokens", "targets"}) {
      std::vector<int32_t>& rows = reference.integers(graph.Input(name));
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i * i + 3) % 96;
    }
    for (const graph::Parameter& parameter : graph.parameters) {
      std::vector<double>& values = reference.values(parameter.value);
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.3 * std::sin(1.0 + 7.0 * i);
    }
    reference.Run({.gradient_scale = 1.0 / 32});
    loss[fuse] = reference.values(graph.losses[0].sums)[0];
    for (const graph::Parameter& parameter : graph.parameters) {
      gradients[fuse][graph.values[parameter.gradient].name] = reference.values(parameter.gradient);
    }
  }
  EXPECT_GT(loss[0], 1);
  EXPECT_EQ(loss[1], loss[0]);
  EXPECT_EQ(gradients[1], gradients[0]);
}

}  // namespace
}  // namespace milepost::plan
