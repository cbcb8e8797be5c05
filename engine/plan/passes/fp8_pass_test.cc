#include "engine/plan/passes/fp8_pass.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "common/spec/validate.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "engine/plan/scalings.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/testing/verify_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Phase;
using graph::ValueId;
using ::testing::HasSubstr;

v1::JobSpec Gpt2() { return SpecOf(TestModel{.layers = 3}); }

v1::JobSpec Llama() {
  v1::JobSpec spec;
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(3);
  llama.set_width(64);
  llama.set_heads(4);
  llama.set_kv_heads(2);
  llama.set_hidden(96);
  llama.set_context(32);
  llama.set_vocabulary(96);
  llama.set_qkv_bias(true);
  llama.set_head_dim(16);
  NormalizeJobSpec(&spec);
  return spec;
}

v1::JobSpec Bert() {
  v1::JobSpec spec;
  v1::BertSpec& bert = *spec.mutable_model()->mutable_bert();
  bert.set_layers(2);
  bert.set_width(64);
  bert.set_heads(4);
  bert.set_hidden(128);
  bert.set_context(32);
  bert.set_vocabulary(96);
  bert.set_segments(2);
  return spec;
}

PlanOptions Options(int world = 1, int stage = 0, Recompute recompute = Recompute::kNone,
                    bool fp8 = true) {
  PlanOptions options = OptionsOf(world, stage, DType::kBf16);
  options.recompute = recompute;
  options.fp8 = fp8;
  return options;
}

StepPlan Plan(const v1::JobSpec& spec, const PlanOptions& options) {
  absl::StatusOr<StepPlan> plan = PlanTraining(spec, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : StepPlan{};
}

int Count(const Program& program, OpKind kind, Phase phase) {
  return static_cast<int>(std::count_if(
      program.ops.begin(), program.ops.end(),
      [&](const PlannedOp& op) { return op.op.kind == kind && op.op.phase == phase; }));
}

// With scalings of zeros, which round nothing in the reference: the products that were there.
struct Computed {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
};
Computed Compute(const graph::Graph& graph, float scale) {
  graph::ReferenceInterpreter reference(graph);
  for (const ValueId input : graph.inputs) {
    std::vector<int32_t>& rows = reference.integers(input);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>((i * i + 3 * i) % 2);
    if (graph.values[input].name == "documents") std::fill(rows.begin(), rows.end(), 0);
  }
  uint64_t state = 5;
  for (const graph::Parameter& parameter : graph.parameters) {
    const bool norm = parameter.initializer == graph::Initializer::kOnes;
    for (double& value : reference.values(parameter.value)) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      value = (norm ? 1 : 0) + 0.2 * (std::ldexp(static_cast<double>(state >> 40), -23) - 1);
    }
  }
  for (const graph::Scaling& scaling : graph.scalings) {
    reference.values(scaling.scaling)[1] = scaling.dtype == DType::kE5M2 ? scale * 1024 : scale;
  }
  reference.Run({.gradient_scale = 1.0 / 32});
  Computed computed = {.loss = reference.values(graph.losses[0].sums)[0]};
  for (const graph::Parameter& parameter : graph.parameters) {
    computed.gradients[graph.values[parameter.gradient].name] =
        reference.values(parameter.gradient);
  }
  return computed;
}

TEST(Fp8Pass, GivesEveryProductItsOperands) {
  for (const v1::JobSpec& spec : {Gpt2(), Llama(), Bert()}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      const Computed want = Compute(Plan(spec, Options(1, 0, recompute, false)).train.graph, 0);
      const graph::Graph graph = Plan(spec, Options(1, 0, recompute)).train.graph;
      const Computed got = Compute(graph, 0);
      EXPECT_NEAR(got.loss, want.loss, 1e-9 * want.loss);
      ASSERT_EQ(got.gradients.size(), want.gradients.size());
      for (const auto& [name, values] : want.gradients) {
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(got.gradients.at(name)[i], values[i], 1e-9 * std::abs(values[i]) + 1e-12)
              << name << " at " << i;
        }
      }
      // Rounded, the loss is near.
      const Computed rounded = Compute(graph, 32);
      EXPECT_NE(rounded.loss, want.loss);
      EXPECT_NEAR(rounded.loss, want.loss, 0.05 * want.loss);
    }
  }
}

// Four layers a block; of each an input, a weight and a gradient.
TEST(Fp8Pass, RoundsWhatProductsRead) {
  const StepPlan plan = Plan(Gpt2(), Options());
  EXPECT_EQ(plan.train.graph.scalings.size(), 3U * 4 * 3);
  EXPECT_EQ(Count(plan.train, OpKind::kQuantize, Phase::kForward), 3 * 4 * 2);
  // A weight and a gradient of each; the attention's output, which the backward reads anyhow.
  EXPECT_EQ(Count(plan.train, OpKind::kQuantize, Phase::kBackward), 3 * (4 * 2 + 1));
  EXPECT_EQ(Count(plan.train, OpKind::kGatherAmaxes, Phase::kUpdate), 1);
  EXPECT_EQ(Count(plan.train, OpKind::kUpdateScalings, Phase::kUpdate), 1);
  EXPECT_EQ(Count(plan.evaluate, OpKind::kQuantize, Phase::kForward), 0);
  const StepPlan sixteen = Plan(Gpt2(), Options(1, 0, Recompute::kNone, false));
  EXPECT_EQ(plan.flops_per_step, sixteen.flops_per_step);
  EXPECT_EQ(sixteen.scalings, kNoBuffer);
}

// What only a weight's gradient wants is kept in 8 bits, not in 16.
TEST(Fp8Pass, KeepsInputsInEightBits) {
  const StepPlan plan = Plan(Llama(), Options());
  std::map<std::string, Phase> last_read;
  for (const PlannedOp& planned : plan.train.ops) {
    for (const ValueId input : planned.op.inputs) {
      if (input != kNoValue) last_read[plan.train.graph.values[input].name] = planned.op.phase;
    }
  }
  EXPECT_EQ(last_read.at("layers.0.mlp.swiglu"), Phase::kForward);
  EXPECT_EQ(last_read.at("fp8 turned layers.0.mlp.swiglu"), Phase::kBackward);
  EXPECT_EQ(last_read.at("layers.0.attn.out"), Phase::kBackward);
}

TEST(Fp8Pass, LeavesRaggedLayersAlone) {
  v1::JobSpec spec = Llama();
  spec.mutable_model()->mutable_llama()->set_hidden(72);
  const StepPlan plan = Plan(spec, Options());
  for (const PlannedOp& planned : plan.train.ops) {
    if (planned.op.kind != OpKind::kLinear) continue;
    const std::string& name = plan.train.graph.values[planned.op.outputs[0].value].name;
    EXPECT_EQ(planned.op.attributes.fp8, !absl::StrContains(name, "mlp")) << name;
  }
  PlanOptions options = Options();
  options.sequence = 15;
  EXPECT_THAT(std::string(PlanTraining(spec, options).status().message()),
              HasSubstr("train.precision: fp8"));
}

// PlanTraining verifies what it makes.
TEST(Fp8Pass, EveryLayoutIsProved) {
  for (const int world : {1, 2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        Plan(Llama(), Options(world, stage, recompute));
        PlanOptions options = Options(world, stage, recompute);
        options.accumulation = 1;
        options.device = DeviceKind::kCuda;
        options.fuse_gelu = true;
        Plan(Gpt2(), options);
        options.offload_activations = true;
        Plan(Llama(), options);
      }
    }
  }
}

TEST(Fp8Pass, TheVerifierSeesWhatIsMissing) {
  const StepPlan plan = Plan(Gpt2(), Options(2, 1));
  const auto without = [&](OpKind kind) {
    StepPlan broken = plan;
    std::vector<int> order = Identity(broken.train);
    order.erase(order.begin() + FindOp(broken.train, kind));
    Reorder(broken.train, order);
    return broken;
  };
  EXPECT_THAT(std::string(Verify(without(OpKind::kUpdateScalings)).message()),
              HasSubstr("scalings are updated 0 times"));
  EXPECT_THAT(std::string(Verify(without(OpKind::kGatherAmaxes)).message()),
              HasSubstr("not gathered"));
  StepPlan hasty = plan;  // before it is known whether the step is skipped
  std::vector<int> order = Identity(hasty.train);
  const int scalars = FindOp(hasty.train, OpKind::kReduceScalars);
  for (const OpKind kind : {OpKind::kUpdateScalings, OpKind::kGatherAmaxes}) {
    const int op = FindOp(hasty.train, kind);
    std::erase(order, op);
    order.insert(order.begin() + scalars, op);
  }
  Reorder(hasty.train, order);
  EXPECT_THAT(std::string(Verify(hasty).message()), HasSubstr("whether the step updates"));
  StepPlan silent = plan;
  PlannedOp& quantize = silent.train.ops[FindOp(silent.train, OpKind::kQuantize)];
  quantize.op.outputs[2] = {};
  std::erase_if(quantize.accesses,
                [&](const Access& access) { return access.buffer == silent.amaxes; });
  EXPECT_THAT(std::string(Verify(silent).message()), HasSubstr("is not complete"));
  StepPlan moved = plan;
  moved.train.places[moved.train.graph.scalings[1].scaling].offset = 0;
  EXPECT_THAT(std::string(Verify(moved).message()), HasSubstr("does not lie among the scalings"));
  StepPlan small = plan;
  small.buffers[small.gathered_amaxes].bytes -= 4;
  EXPECT_FALSE(Verify(small).ok());
}

}  // namespace
}  // namespace milepost::plan
