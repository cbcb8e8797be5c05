#include "engine/plan/passes/context_pass.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/models/model.h"
#include "engine/plan/passes/tensor_pass.h"
#include "engine/plan/printing/printer.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using graph::Shape;
using ::testing::HasSubstr;

// Of 8 of a sequence's 16 tokens.
graph::Graph ForwardOf(const v1::JobSpec& spec, bool documents = false) {
  auto graph =
      models::BuildModel(spec.model(), {.batch = 2, .sequence = 8, .documents = documents});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

v1::JobSpec LlamaSpecOf(int64_t heads, int64_t kv_heads) {
  v1::JobSpec spec;
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(2);
  llama.set_width(64);
  llama.set_heads(heads);
  llama.set_kv_heads(kv_heads);
  llama.set_head_dim(8);
  llama.set_hidden(48);
  llama.set_context(32);
  llama.set_vocabulary(96);
  llama.set_rope_theta(10000);
  llama.set_norm_epsilon(1e-5);
  llama.set_qk_norm(true);
  return spec;
}

Shape ShapeOf(const graph::Graph& graph, absl::string_view name) {
  for (const graph::Value& value : graph.values) {
    if (value.name == name) return value.shape;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

std::vector<std::string> KindsAround(const graph::Graph& graph, absl::string_view layer) {
  std::vector<std::string> kinds;
  for (const graph::Op& op : graph.ops) {
    const graph::ValueId out = op.outputs[0].value;
    if (absl::StartsWith(graph.values[out].name, layer)) kinds.push_back(Name(op.kind));
  }
  return kinds;
}

absl::StatusOr<StepPlan> PlanOf(const v1::JobSpec& spec, int world, int context, int tensor = 1,
                                int64_t sequence = 16) {
  PlanOptions options = OptionsOf(world, 1, DType::kF32);
  options.sequence = sequence;
  options.context = context;
  options.tensor = tensor;
  return PlanTraining(spec, options);
}

TEST(ContextPass, OneRankChangesNothing) {
  graph::Graph graph = ForwardOf(SpecOf({}));
  const size_t ops = graph.ops.size(), values = graph.values.size();
  ASSERT_EQ(DivideSequences(graph, 1), absl::OkStatus());
  EXPECT_EQ(graph.ops.size(), ops);
  EXPECT_EQ(graph.values.size(), values);
}

TEST(ContextPass, OpsByHeadsLieBetweenTwoExchanges) {
  graph::Graph graph = ForwardOf(LlamaSpecOf(8, 4), /*documents=*/true);
  ASSERT_EQ(DivideSequences(graph, 2), absl::OkStatus());
  EXPECT_THAT(KindsAround(graph, "layers.0.attn."),
              ::testing::ElementsAre("linear", "tokens_to_heads", "qk_norm", "rope", "attention",
                                     "heads_to_tokens", "linear"));
  // 2 sequences: rows of 8 tokens and 16 heads of 8, or of 16 tokens and half of the heads.
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.qkv"), (Shape{16, 128}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.qkv by heads"), (Shape{32, 64}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.rotated"), (Shape{32, 64}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.out by heads"), (Shape{32, 32}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.out.lse"), (Shape{2, 4, 16}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.out"), (Shape{16, 64}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.delta"), (Shape{16, 64}));
  EXPECT_EQ(ShapeOf(graph, "rope"), (Shape{16, 8}));
  // Where documents begin is needed of all tokens, what is to be learned of a rank's own.
  EXPECT_EQ(ShapeOf(graph, "documents"), Shape{32});
  EXPECT_EQ(ShapeOf(graph, "positions"), Shape{32});
  EXPECT_EQ(ShapeOf(graph, "tokens"), Shape{16});
  EXPECT_EQ(ShapeOf(graph, "targets"), Shape{16});
}

// GPT-2 reads positions for its embedding.
TEST(ContextPass, ATableOfPositionsIsReadByTokens) {
  graph::Graph graph = ForwardOf(SpecOf({}), /*documents=*/true);
  ASSERT_EQ(DivideSequences(graph, 2), absl::OkStatus());
  EXPECT_EQ(ShapeOf(graph, "positions"), Shape{16});
  EXPECT_EQ(ShapeOf(graph, "documents"), Shape{32});
}

TEST(ContextPass, TensorRanksDivideTheHeadsFirst) {
  graph::Graph graph = ForwardOf(LlamaSpecOf(8, 4));
  ASSERT_EQ(DivideLayers(graph, 2), absl::OkStatus());
  ASSERT_EQ(DivideSequences(graph, 2), absl::OkStatus());
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.qkv by heads"), (Shape{32, 32}));
}

// Two heads of keys for four ranks: two neighbours have the same, each for two heads of queries.
TEST(ContextPass, RanksShareHeadsOfKeysThatAreFewer) {
  graph::Graph graph = ForwardOf(LlamaSpecOf(8, 2));
  ASSERT_EQ(DivideSequences(graph, 4), absl::OkStatus());
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.qkv"), (Shape{16, 96}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.qkv by heads"), (Shape{64, 32}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.rotated"), (Shape{64, 32}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.out by heads"), (Shape{64, 16}));
  const absl::StatusOr<StepPlan> plan = PlanOf(LlamaSpecOf(8, 2), 4, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const PlannedOp& op : plan->train.ops) {
    if (op.op.kind != OpKind::kAttention) continue;
    EXPECT_EQ(op.op.attributes.heads, 2);
    EXPECT_EQ(op.op.attributes.kv_heads, 1);
  }
}

// Two heads of queries, and one of keys, for six ranks: three neighbours have the same head.
TEST(ContextPass, RanksShareTheQueriesOfHeadsThatAreFewer) {
  graph::Graph graph = ForwardOf(LlamaSpecOf(2, 1));
  ASSERT_EQ(DivideSequences(graph, 6), absl::OkStatus());
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.qkv"), (Shape{16, 32}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.qkv by heads"), (Shape{96, 24}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.out by heads"), (Shape{96, 8}));
  EXPECT_EQ(ShapeOf(graph, "layers.0.attn.out.lse"), (Shape{2, 1, 48}));
  v1::JobSpec spec = LlamaSpecOf(2, 1);
  spec.mutable_model()->mutable_llama()->set_context(128);
  const absl::StatusOr<StepPlan> plan = PlanOf(spec, 4, 4, 1, 128);
  const absl::StatusOr<StepPlan> alone = PlanOf(spec, 1, 1, 1, 128);
  ASSERT_TRUE(plan.ok() && alone.ok()) << plan.status() << alone.status();
  const auto attention = [](const StepPlan& of) {
    return *std::find_if(of.train.ops.begin(), of.train.ops.end(),
                         [](const PlannedOp& op) { return op.op.kind == OpKind::kAttention; });
  };
  EXPECT_EQ(attention(*plan).op.attributes.query_parts, 2);
  // Half of a head's queries, in blocks of 64: one of the two blocks.
  EXPECT_EQ(attention(*plan).flops, attention(*alone).flops / 4);
  // Queries that no rank computes, or all, are found before anything runs.
  for (const int64_t parts : {1, 4}) {
    StepPlan wrong = *plan;
    for (PlannedOp& op : wrong.train.ops) {
      if (op.op.kind == OpKind::kAttention) op.op.attributes.query_parts = parts;
    }
    EXPECT_THAT(VerifyHeads(wrong, wrong.train).message(),
                HasSubstr(absl::StrCat("computes one of ", parts, " parts of queries")));
  }
  StepPlan left_out = *alone;
  for (PlannedOp& op : left_out.train.ops) {
    if (op.op.kind == OpKind::kAttention) op.op.attributes.query_parts = 2;
  }
  EXPECT_THAT(VerifyHeads(left_out, left_out.train).message(), HasSubstr("leaves out queries"));
}

TEST(ContextPass, NamesWhatCannotBeDivided) {
  graph::Graph graph = ForwardOf(SpecOf({.context = 15}));
  EXPECT_THAT(DivideSequences(graph, 2).message(),
              HasSubstr("sequences of 16 tokens are longer than the 15 positions"));
  EXPECT_THAT(PlanOf(SpecOf({}), 3, 2).status().message(), HasSubstr("does not divide 3 ranks"));
}

TEST(ContextPass, ExchangesAreCountedAndPlannedAsCommunication) {
  const absl::StatusOr<StepPlan> plan = PlanOf(SpecOf({.layers = 3}), 4, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int exchanges = 0;
  double bytes = 0;
  for (const PlannedOp& op : plan->train.ops) {
    if (op.op.kind != OpKind::kTokensToHeads && op.op.kind != OpKind::kHeadsToTokens) continue;
    EXPECT_EQ(op.stream, Stream::kCommunication);
    ++exchanges;
    bytes += op.wire_bytes;
  }
  EXPECT_EQ(exchanges, 4 * 3);
  // Of 2 x 8 rows of 64: queries, keys, values and what attention makes, forward and backward; half
  // of it is the rank's own.
  EXPECT_EQ(bytes, 3 * 2 * (2 * 8 * 4 * 64) * 4 / 2);
  EXPECT_THAT(PlanTable(*plan, {}),
              HasSubstr("context        8 of 16 tokens of each sequence, and 2 heads of all"));
  EXPECT_THAT(PlanJson(*plan, {}, 0), HasSubstr("\"exchanged_bytes\""));
}

// An exchange that is left out, or sends other bytes, is found before anything runs.
TEST(ContextPass, ExchangesAreVerified) {
  const absl::StatusOr<StepPlan> plan = PlanOf(LlamaSpecOf(8, 4), 4, 2, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Verify(*plan), absl::OkStatus());
  for (const OpKind kind : {OpKind::kTokensToHeads, OpKind::kHeadsToTokens}) {
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
      EXPECT_FALSE(VerifyHeads(without, without.train).ok()) << Name(kind);
    }
  }
  StepPlan fewer = *plan;  // attention of a rank's own tokens
  for (PlannedOp& op : fewer.train.ops) {
    if (op.op.kind == OpKind::kAttention) op.op.attributes.sequence /= 2;
  }
  EXPECT_THAT(VerifyHeads(fewer, fewer.train).message(), HasSubstr("has not all tokens"));
}

TEST(ContextPass, ARanksShareOfTheWork) {
  const v1::JobSpec spec = SpecOf(Gpt2Small());
  const absl::StatusOr<StepPlan> alone = PlanOf(spec, 1, 1);
  const absl::StatusOr<StepPlan> divided = PlanOf(spec, 4, 4);
  ASSERT_TRUE(alone.ok() && divided.ok()) << divided.status();
  EXPECT_EQ(divided->parameters, alone->parameters);
  EXPECT_NEAR(divided->flops_per_step, alone->flops_per_step / 4, 1e-9 * alone->flops_per_step);
}

}  // namespace
}  // namespace milepost::plan
