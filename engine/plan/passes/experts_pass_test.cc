#include "engine/plan/passes/experts_pass.h"
#include "engine/ops/expert_parallel/expert_parallel.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "engine/models/model.h"
#include "engine/plan/printing/printer.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/testing/verify_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using graph::Shape;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 4 experts of each layer, of which a token picks 2.
v1::JobSpec MixtureSpec(int64_t experts = 4, int64_t per_token = 2) {
  v1::JobSpec spec;
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(2);
  llama.set_width(64);
  llama.set_heads(4);
  llama.set_kv_heads(4);
  llama.set_head_dim(16);
  llama.set_context(32);
  llama.set_vocabulary(96);
  llama.set_rope_theta(10000);
  llama.set_norm_epsilon(1e-5);
  llama.set_hidden(48);
  llama.mutable_experts()->set_count(experts);
  llama.mutable_experts()->set_per_token(per_token);
  llama.mutable_experts()->set_hidden(48);
  llama.mutable_experts()->set_balance_loss(0.01);
  return spec;
}

// 2 sequences of 8 tokens.
graph::Graph MixtureOf(const v1::JobSpec& spec) {
  auto graph = models::BuildModel(spec.model(), {.batch = 2, .sequence = 8});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

const graph::Value& ValueOf(const graph::Graph& graph, absl::string_view name) {
  for (const graph::Value& value : graph.values) {
    if (value.name == name) return value;
  }
  ADD_FAILURE() << "no " << name;
  return graph.values[0];
}

absl::StatusOr<StepPlan> PlanOnExperts(const v1::JobSpec& spec, int world, int expert,
                                       int stage = 1, int own = 0) {
  PlanOptions options = OptionsOf(world, stage, DType::kF32);
  options.expert = expert;
  options.expert_rank = own;
  return PlanTraining(spec, options);
}

TEST(ExpertsPass, OneRankChangesNothing) {
  graph::Graph graph = MixtureOf(MixtureSpec());
  const size_t ops = graph.ops.size(), values = graph.values.size();
  ASSERT_EQ(DivideExperts(graph, 1, 0), absl::OkStatus());
  EXPECT_EQ(graph.ops.size(), ops);
  EXPECT_EQ(graph.values.size(), values);
}

TEST(ExpertsPass, ExpertsLieBetweenTwoExchanges) {
  graph::Graph graph = MixtureOf(MixtureSpec());
  ASSERT_EQ(DivideExperts(graph, 2, 1), absl::OkStatus());
  std::vector<std::string> kinds;
  for (const graph::Op& op : graph.ops) {
    const std::string& made = graph.values[op.outputs[0].value].name;
    if (absl::StartsWith(made, "layers.0.mlp.")) kinds.push_back(Name(op.kind));
  }
  EXPECT_THAT(kinds, ElementsAre("linear", "route_experts", "dispatch_rows", "expert_segments",
                                 "rows_to_experts", "expert_linear", "swiglu", "expert_linear",
                                 "rows_from_experts", "combine_rows"));
  // 16 tokens, and 2 experts for each: of two ranks all may come.
  EXPECT_EQ(ValueOf(graph, "layers.0.mlp.rows").shape, (Shape{32, 64}));
  EXPECT_EQ(ValueOf(graph, "layers.0.mlp.rows at experts").shape, (Shape{64, 64}));
  EXPECT_EQ(ValueOf(graph, "layers.0.mlp.gate_up").shape, (Shape{64, 96}));
  EXPECT_EQ(ValueOf(graph, "layers.0.mlp.swiglu").shape, (Shape{64, 48}));
  EXPECT_EQ(ValueOf(graph, "layers.0.mlp.down").shape, (Shape{64, 64}));
  EXPECT_EQ(ValueOf(graph, "layers.0.mlp.down back").shape, (Shape{32, 64}));
  EXPECT_EQ(ValueOf(graph, "layers.0.mlp.delta").shape, (Shape{16, 64}));
}

// A token picks an expert once.
TEST(ExpertsPass, ThereIsRoomForAsManyRowsAsTokensCanPick) {
  for (const auto& [ranks, rows] :
       std::vector<std::pair<int, int64_t>>{{2, 2 * 16 * 3}, {4, 4 * 16 * 2}, {8, 8 * 16 * 1}}) {
    graph::Graph graph = MixtureOf(MixtureSpec(/*experts=*/8, /*per_token=*/3));
    ASSERT_EQ(DivideExperts(graph, ranks, 0), absl::OkStatus());
    EXPECT_EQ(ValueOf(graph, "layers.0.mlp.rows at experts").shape, (Shape{rows, 64}));
  }
}

TEST(ExpertsPass, ARankHasItsOwnExperts) {
  graph::Graph graph = MixtureOf(MixtureSpec());
  ASSERT_EQ(DivideExperts(graph, 2, 1), absl::OkStatus());
  for (const graph::Parameter& parameter : graph.parameters) {
    const std::string& name = graph.values[parameter.value].name;
    EXPECT_EQ(parameter.of_experts, absl::StrContains(name, ".experts.")) << name;
    const bool of_other =
        absl::StrContains(name, ".experts.0.") || absl::StrContains(name, ".experts.1.");
    EXPECT_EQ(parameter.elsewhere, of_other) << name;
  }
  for (const graph::Op& op : graph.ops) {
    if (op.kind != OpKind::kExpertLinear) continue;
    EXPECT_EQ(op.attributes.experts.count, 2);
    EXPECT_EQ(op.attributes.experts.even_rows, 32);
    EXPECT_EQ(op.inputs.size(), 2 + 2 * static_cast<size_t>(op.attributes.parts));
  }
}

TEST(ExpertsPass, NamesWhatCannotBeShared) {
  graph::Graph graph = MixtureOf(MixtureSpec());
  EXPECT_THAT(DivideExperts(graph, 3, 0).message(),
              HasSubstr("layers.0.mlp.gate_up: 3 ranks do not divide 4 experts"));
  graph = MixtureOf(SpecOf({}));
  EXPECT_THAT(DivideExperts(graph, 2, 0).message(), HasSubstr("the model has no experts"));
  EXPECT_THAT(PlanOnExperts(MixtureSpec(), 3, 2).status().message(),
              HasSubstr("does not divide 3 ranks"));
}

// What ranks have alike is sharded over all of them, experts over those with the same ones.
TEST(ExpertsPass, ExpertsHaveFlatGroupsOfTheirOwn) {
  for (const int stage : {0, 1, 2, 3}) {
    const absl::StatusOr<StepPlan> plan = PlanOnExperts(MixtureSpec(), 4, 2, stage, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    int groups = 0;
    for (const FlatGroup& group : plan->groups) {
      EXPECT_EQ(group.of_experts, absl::StrContains(group.name, "(experts)"));
      groups += group.of_experts ? 1 : 0;
      const int shards = stage == 0 ? 1 : group.of_experts ? 2 : 4;
      EXPECT_EQ(group.shard_elements * shards, group.padded_elements) << group.name;
    }
    EXPECT_EQ(groups, 2);
    EXPECT_EQ(plan->elsewhere.size(), 2);
  }
}

TEST(ExpertsPass, ARanksShareOfTheWork) {
  const absl::StatusOr<StepPlan> alone = PlanOnExperts(MixtureSpec(), 4, 1);
  const absl::StatusOr<StepPlan> shared = PlanOnExperts(MixtureSpec(), 4, 4);
  ASSERT_TRUE(alone.ok() && shared.ok()) << shared.status();
  EXPECT_EQ(shared->parameters, alone->parameters);
  EXPECT_DOUBLE_EQ(shared->flops_per_step, alone->flops_per_step);
}

TEST(ExpertsPass, ExchangesAreCountedAndPlannedAsCommunication) {
  const absl::StatusOr<StepPlan> plan = PlanOnExperts(MixtureSpec(), 4, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int exchanges = 0;
  double bytes = 0;
  for (const PlannedOp& op : plan->train.ops) {
    if (!ops::IsExpertExchange(op.op.kind)) continue;
    EXPECT_EQ(op.stream, Stream::kCommunication);
    ++exchanges;
    bytes += op.wire_bytes;
  }
  EXPECT_EQ(exchanges, (4 + 1) * 2);
  // Of 2 x 16 tokens two rows of 64 each, there and back, forward and backward, and once how many
  // of each of 4 experts; half of it is the rank's own.
  const auto rows = static_cast<double>(plan->options.micro_batch * plan->options.sequence * 2);
  EXPECT_EQ(bytes, 2 * (4 * rows * 64 * 4 + 4 * 4) / 2);
  EXPECT_THAT(PlanTable(*plan, {}), HasSubstr("expert         2 of 4 experts of each layer"));
  EXPECT_THAT(PlanJson(*plan, {}, 0), HasSubstr("\"most_rows\""));
}

// An exchange that is left out, sends other bytes or has too little room is found before anything
// runs; and so is a group that other ranks are taken to have.
TEST(ExpertsPass, ExchangesAreVerified) {
  const absl::StatusOr<StepPlan> plan = PlanOnExperts(MixtureSpec(), 4, 2, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Verify(*plan), absl::OkStatus());
  for (const OpKind kind : {OpKind::kRowsToExperts, OpKind::kRowsFromExperts}) {
    for (const graph::Phase phase : {graph::Phase::kForward, graph::Phase::kBackward}) {
      StepPlan more = *plan, without = *plan;
      for (size_t i = 0; i < plan->train.ops.size(); ++i) {
        const graph::Op& op = plan->train.ops[i].op;
        if (op.kind != kind || op.phase != phase) continue;
        more.train.ops[i].wire_bytes *= 2;
        without.train.ops[i].op.kind = OpKind::kAdd;
        break;
      }
      EXPECT_THAT(Verify(more).message(), HasSubstr(Name(kind)));
      EXPECT_FALSE(VerifyExperts(without, without.train).ok()) << Name(kind);
    }
  }
  StepPlan unknown = *plan, fewer_counts = *plan;
  const int asks = FindOp(unknown.train, OpKind::kExpertSegments);
  unknown.train.ops[asks].op.kind = OpKind::kAdd;
  EXPECT_THAT(VerifyExperts(unknown, unknown.train).message(),
              HasSubstr("does not know where rows begin"));
  fewer_counts.train.ops[asks].wire_bytes /= 2;
  EXPECT_THAT(Verify(fewer_counts).message(), HasSubstr("expert_segments"));
  StepPlan narrow = *plan;
  const int exchange = FindOp(narrow.train, OpKind::kRowsToExperts);
  const graph::ValueId rows = narrow.train.ops[exchange].op.outputs[0].value;
  narrow.train.graph.values[rows].shape[0] -= 1;
  EXPECT_THAT(VerifyExperts(narrow, narrow.train).message(), HasSubstr("may be too few"));
  StepPlan fewer = *plan;
  fewer.train.ops[FindOp(fewer.train, OpKind::kExpertLinear)].op.inputs.pop_back();
  EXPECT_FALSE(VerifyExperts(fewer, fewer.train).ok());
  StepPlan alike = *plan;
  for (FlatGroup& group : alike.groups) group.of_experts = false;
  alike.elsewhere.clear();
  EXPECT_THAT(VerifyExperts(alike, alike.train).message(), HasSubstr("which is of no expert"));
  StepPlan all = *plan;  // a router that only some ranks would reduce
  for (FlatGroup& group : all.groups) group.of_experts = true;
  EXPECT_THAT(VerifyExperts(all, all.train).message(), HasSubstr("expert rank's"));
  StepPlan other = *plan;
  other.options.expert_rank = 1;
  EXPECT_THAT(VerifyExperts(other, other.train).message(), HasSubstr("expert rank's"));
}

// Where each expert has ranks of its own, nothing of it is left to be gathered.
TEST(ExpertsPass, WhatIsNotShardedIsNotGathered) {
  const absl::StatusOr<StepPlan> plan = PlanOnExperts(MixtureSpec(), 4, 4, 3);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int others = 0;
  for (const PlannedOp& op : plan->train.ops) {
    if (op.op.kind != OpKind::kGatherParameters) continue;
    EXPECT_FALSE(plan->groups[op.op.attributes.group].of_experts);
    ++others;
  }
  EXPECT_GT(others, 0);
}

// A rank whose experts are all frozen would not take part in their backward.
TEST(ExpertsPass, ExpertsAreFrozenAlike) {
  const auto plan_of = [](const std::string& match, int world) {
    v1::JobSpec spec = MixtureSpec();
    v1::ParameterGroupSpec& group = *spec.mutable_train()->mutable_optimizer()->add_groups();
    group.set_match(match);
    group.set_freeze(true);
    return PlanOnExperts(spec, world, world).status();
  };
  EXPECT_EQ(plan_of("*experts*", 2), absl::OkStatus());
  EXPECT_EQ(plan_of("*experts*w2*", 2), absl::OkStatus());
  EXPECT_EQ(plan_of("*experts.1.*", 1), absl::OkStatus());
  EXPECT_THAT(plan_of("*experts.1.*", 2).message(),
              HasSubstr("freeze all experts of a layer or none"));
}

// Each tensor rank has half of every expert. All that it makes of the rows and of the router's
// gradient is added up.
TEST(ExpertsPass, TensorRanksDivideEveryExpert) {
  PlanOptions options = OptionsOf(2, 1, DType::kF32);
  options.tensor = 2;
  options.expert = 2;
  const absl::StatusOr<StepPlan> plan = PlanTraining(MixtureSpec(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string layer = "model.layers.0.block_sparse_moe.";
  const graph::Graph& graph = plan->train.graph;
  EXPECT_EQ(ValueOf(graph, layer + "experts.0.w1.weight").shape, (Shape{24, 64}));
  EXPECT_EQ(ValueOf(graph, layer + "experts.0.w2.weight").shape, (Shape{64, 24}));
  EXPECT_EQ(ValueOf(graph, layer + "gate.weight").shape, (Shape{4, 64}));
  EXPECT_EQ(Verify(*plan), absl::OkStatus());
  int sums = 0;
  for (size_t i = 0; i < plan->train.ops.size(); ++i) {
    const graph::Op& op = plan->train.ops[i].op;
    if (op.kind != OpKind::kTensorReduce || op.phase != graph::Phase::kBackward) continue;
    ++sums;
    StepPlan without = *plan;
    without.train.ops[i].op.kind = OpKind::kAdd;
    EXPECT_THAT(VerifySums(without, without.train).message(), HasSubstr("is read by add"));
  }
  EXPECT_EQ(sums, 2 * 2);  // of each layer: the router's logits and the rows
}

}  // namespace
}  // namespace milepost::plan
