#include "engine/plan/passes/tensor_pass.h"

#include <string>

#include "absl/strings/match.h"
#include "common/spec/validate.h"
#include "engine/models/model.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using ::testing::HasSubstr;

graph::Graph ForwardOf(const v1::JobSpec& spec) {
  auto graph = models::BuildModel(spec.model(), {.batch = 2, .sequence = 16});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

const graph::Parameter& ParameterNamed(const graph::Graph& graph, absl::string_view name) {
  for (const graph::Parameter& parameter : graph.parameters) {
    if (absl::StrContains(graph.values[parameter.value].name, name)) return parameter;
  }
  ADD_FAILURE() << "no " << name;
  return graph.parameters[0];
}

TEST(TensorPass, OneRankChangesNothing) {
  graph::Graph graph = ForwardOf(SpecOf({}));
  const size_t ops = graph.ops.size();
  ASSERT_EQ(DivideLayers(graph, 1), absl::OkStatus());
  EXPECT_EQ(graph.ops.size(), ops);
  for (const graph::Parameter& parameter : graph.parameters) {
    EXPECT_TRUE(parameter.division.whole());
  }
}

// GPT-2's query, key and value lie side by side in one weight's columns.
TEST(TensorPass, ARankHasWholeHeadsOfEach) {
  graph::Graph graph = ForwardOf(SpecOf({.width = 64, .heads = 4}));
  ASSERT_EQ(DivideLayers(graph, 2), absl::OkStatus());
  const graph::Parameter& qkv = ParameterNamed(graph, "h.0.attn.c_attn.weight");
  EXPECT_EQ(graph.values[qkv.value].shape, (graph::Shape{64, 96}));
  EXPECT_EQ(qkv.undivided, (std::vector<int64_t>{64, 192}));
  EXPECT_EQ(graph.ElementsOf(qkv), 64 * 192);
  // Row 1, the first column of the keys: behind 32 of the queries.
  EXPECT_EQ(qkv.division.WholeIndex(96 + 32, /*tensor_rank=*/0), 192 + 64);
  EXPECT_EQ(qkv.division.WholeIndex(96 + 32, /*tensor_rank=*/1), 192 + 64 + 32);
  const graph::Parameter& bias = ParameterNamed(graph, "h.0.attn.c_attn.bias");
  EXPECT_EQ(bias.division.WholeIndex(33, /*tensor_rank=*/1), 64 + 32 + 1);
  const graph::Parameter& out = ParameterNamed(graph, "h.0.attn.c_proj.weight");
  EXPECT_EQ(graph.values[out.value].shape, (graph::Shape{32, 64}));
  EXPECT_EQ(out.division.WholeIndex(5, /*tensor_rank=*/1), 32 * 64 + 5);
  EXPECT_TRUE(ParameterNamed(graph, "h.0.attn.c_proj.bias").division.whole());
  EXPECT_TRUE(ParameterNamed(graph, "wpe.weight").division.whole());
}

TEST(TensorPass, SumsWhatTheLastLayersMakeAndTheGradientOfTheFirst) {
  PlanOptions options = OptionsOf(1, 0, DType::kF32);
  options.tensor = 2;
  const absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({.layers = 3}), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int forward = 0, backward = 0;
  double bytes = 0;
  for (const PlannedOp& op : plan->train.ops) {
    if (op.op.kind != graph::OpKind::kTensorScatter) continue;
    EXPECT_EQ(op.stream, Stream::kCommunication);
    (op.op.phase == graph::Phase::kForward ? forward : backward) += 1;
    bytes += op.wire_bytes;
  }
  // Two of each layer; and of the vocabulary the gradient behind the head.
  EXPECT_EQ(forward, 6);
  EXPECT_EQ(backward, 7);
  EXPECT_EQ(bytes, 13 * 4 * 2 * 16 * 64 / 2);  // each of two sends the other's half
}

// A sum that is left out, or sends other bytes, is found before anything runs.
TEST(TensorPass, SumsAreVerified) {
  PlanOptions options = OptionsOf(2, 1, DType::kBf16);
  options.tensor = 2;
  const absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({}), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Verify(*plan), absl::OkStatus());
  StepPlan more = *plan;
  for (PlannedOp& op : more.train.ops) {
    if (op.op.kind == graph::OpKind::kTensorScatter) op.wire_bytes *= 2;
  }
  EXPECT_THAT(Verify(more).message(), HasSubstr("tensor_scatter"));
  for (const graph::Phase phase : {graph::Phase::kForward, graph::Phase::kBackward}) {
    StepPlan without = *plan;
    for (PlannedOp& op : without.train.ops) {
      // As an addition of one rank's own: nothing else about the op is wrong.
      if (op.op.kind != graph::OpKind::kTensorScatter || op.op.phase != phase) continue;
      op.op.kind = graph::OpKind::kAdd;
      break;
    }
    EXPECT_THAT(VerifySums(without, without.train).message(), HasSubstr("is read by add"));
  }
}

v1::JobSpec LlamaSpec(int64_t kv_heads) {
  v1::JobSpec spec = SpecOf({});
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(2);
  llama.set_width(64);
  llama.set_heads(8);
  llama.set_kv_heads(kv_heads);
  llama.set_hidden(48);
  llama.set_context(32);
  llama.set_vocabulary(96);
  NormalizeJobSpec(&spec);
  return spec;
}

// Of four ranks the first two have the first of two heads of keys, and the others the second.
TEST(TensorPass, NeighboursHaveTheSameHeadOfKeys) {
  graph::Graph graph = ForwardOf(LlamaSpec(/*kv_heads=*/2));
  ASSERT_EQ(DivideLayers(graph, 4), absl::OkStatus());
  const graph::Parameter& keys = ParameterNamed(graph, "layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(graph.values[keys.value].shape, (graph::Shape{8, 64}));
  EXPECT_EQ(keys.division.sharers, 2);
  EXPECT_TRUE(keys.partial);
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(keys.division.WholeIndex(65, rank), rank / 2 * 8 * 64 + 65);
  }
  const graph::Parameter& queries = ParameterNamed(graph, "layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(graph.values[queries.value].shape, (graph::Shape{16, 64}));
  EXPECT_EQ(queries.division.sharers, 1);
  EXPECT_FALSE(queries.partial);
  for (const graph::Op& op : graph.ops) {
    if (op.kind != graph::OpKind::kAttention) continue;
    EXPECT_EQ(op.attributes.heads, 2);
    EXPECT_EQ(op.attributes.kv_heads, 1);
    EXPECT_EQ(graph.values[op.inputs[0]].shape[1], (2 + 2 * 1) * 8);
  }
}

TEST(TensorPass, WhatNeighboursMakeOfTheSameHeadIsSummedOverThem) {
  PlanOptions options = OptionsOf(2, 1, DType::kBf16);
  options.tensor = 4;
  const absl::StatusOr<StepPlan> plan = PlanTraining(LlamaSpec(/*kv_heads=*/2), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int sums = 0;
  for (const PlannedOp& op : plan->train.ops) {
    if (op.op.kind != graph::OpKind::kReduceParts) continue;
    const FlatGroup& group = plan->groups[static_cast<size_t>(op.op.attributes.group)];
    sums += group.sharers == 2 ? 1 : 0;
    EXPECT_EQ(op.wire_bytes, 2 * (group.sharers == 2 ? 0.5 : 0.75) * 4 *
                                 static_cast<double>(group.padded_elements));
  }
  EXPECT_EQ(sums, 2);  // of each layer
  for (const auto& change : {+[](FlatGroup& group) { group.partial = false; },
                             +[](FlatGroup& group) { group.sharers = 4; }}) {
    StepPlan wrong = *plan;
    for (FlatGroup& group : wrong.groups) {
      if (group.sharers == 2) change(group);
    }
    EXPECT_THAT(Verify(wrong).message(), HasSubstr("is not summed over these"));
  }
}

TEST(TensorPass, NamesWhatCannotBeDivided) {
  graph::Graph graph = ForwardOf(SpecOf({.heads = 4}));
  const absl::Status status = DivideLayers(graph, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("h.0.attn.qkv: 3 does not divide"));
}

TEST(TensorPass, ARanksShareOfTheParametersAndTheWork) {
  const v1::JobSpec spec = SpecOf(Gpt2Small());
  PlanOptions options = OptionsOf(1, 0, DType::kF32);
  const absl::StatusOr<StepPlan> alone = PlanTraining(spec, options);
  options.tensor = 4;
  const absl::StatusOr<StepPlan> divided = PlanTraining(spec, options);
  ASSERT_TRUE(alone.ok() && divided.ok()) << divided.status();
  EXPECT_EQ(divided->parameters, alone->parameters);
  EXPECT_LT(
      divided->bytes_by_class[static_cast<int>(BufferClass::kParameters)],
      0.5 * static_cast<double>(alone->bytes_by_class[static_cast<int>(BufferClass::kParameters)]));
  EXPECT_LT(divided->flops_per_step, 0.5 * alone->flops_per_step);
}

}  // namespace
}  // namespace milepost::plan
