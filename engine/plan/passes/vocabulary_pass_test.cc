#include "engine/plan/passes/vocabulary_pass.h"

#include <algorithm>
#include <string>

#include "engine/models/model.h"
#include "engine/plan/passes/tensor_pass.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using ::testing::HasSubstr;

v1::JobSpec LlamaOf(int64_t vocabulary, bool tied) {
  v1::JobSpec spec;
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(2);
  llama.set_width(64);
  llama.set_heads(4);
  llama.set_kv_heads(4);
  llama.set_head_dim(16);
  llama.set_hidden(96);
  llama.set_context(32);
  llama.set_vocabulary(vocabulary);
  llama.set_tied(tied);
  return spec;
}

graph::Graph Divided(const v1::JobSpec& spec, int ranks, int64_t chunk_rows = 0) {
  auto graph = models::BuildModel(spec.model(),
                                  {.batch = 2, .sequence = 16, .lm_head_chunk_rows = chunk_rows});
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(DivideLayers(*graph, ranks), absl::OkStatus());
  return *std::move(graph);
}

const graph::Parameter& WordsOf(const graph::Graph& graph, absl::string_view name) {
  for (const graph::Parameter& parameter : graph.parameters) {
    if (graph.values[parameter.value].name == name) return parameter;
  }
  ADD_FAILURE() << "no " << name;
  return graph.parameters[0];
}

const graph::Op* FirstOf(const graph::Graph& graph, OpKind kind) {
  for (const graph::Op& op : graph.ops) {
    if (op.kind == kind) return &op;
  }
  return nullptr;
}

absl::StatusOr<StepPlan> PlanOn(const v1::JobSpec& spec, int tensor, int64_t chunk_bytes = 0) {
  PlanOptions options = OptionsOf(2, 1, DType::kF32);
  options.micro_batch = 8;
  options.tensor = tensor;
  options.lm_head_chunk_bytes = chunk_bytes;
  return PlanTraining(spec, options);
}

PlannedOp* PlannedOf(StepPlan& plan, OpKind kind) {
  for (PlannedOp& op : plan.train.ops) {
    if (op.op.kind == kind) return &op;
  }
  ADD_FAILURE() << "no " << graph::Name(kind);
  return nullptr;
}

// Of what each rank knows of rows, not of the rows.
PlannedOp* GatherOfLogits(StepPlan& plan) {
  for (PlannedOp& op : plan.train.ops) {
    const bool gather = op.op.kind == OpKind::kTensorGather;
    if (gather && plan.train.graph.values[op.op.outputs[0].value].shape.size() == 3) return &op;
  }
  ADD_FAILURE() << "no gather of logits";
  return nullptr;
}

// Any number of rows: the last ranks have padding, or nothing else.
TEST(VocabularyPass, ARankHasRowsOfTheTable) {
  const graph::Graph graph = Divided(SpecOf({.vocabulary = 37}), 4);
  const graph::Parameter& words = WordsOf(graph, "transformer.wte.weight");
  EXPECT_EQ(graph.values[words.value].shape, (graph::Shape{16, 64}));
  EXPECT_EQ(words.undivided, (std::vector<int64_t>{37, 64}));
  EXPECT_EQ(graph.ElementsOf(words), 37 * 64);
  EXPECT_EQ(words.division.WholeIndex(5, /*tensor_rank=*/2), 32 * 64 + 5);
  EXPECT_GE(words.division.WholeIndex(0, /*tensor_rank=*/3), 37 * 64);  // padding alone
  EXPECT_EQ(VocabularyRows(50257, 2), 25136);
  EXPECT_EQ(VocabularyRows(128256, 8), 16032);
}

TEST(VocabularyPass, TablesThatAreNotTiedAreBothDivided) {
  for (const bool tied : {false, true}) {
    const graph::Graph graph = Divided(LlamaOf(96, tied), 2);
    EXPECT_EQ(WordsOf(graph, "model.embed_tokens.weight").division.run, 48 * 64);
    if (!tied) {
      EXPECT_EQ(WordsOf(graph, "lm_head.weight").division.run, 48 * 64);
    }
    ASSERT_NE(FirstOf(graph, OpKind::kTokenRows), nullptr);
    const graph::Op& parts = *FirstOf(graph, OpKind::kLmHeadParts);
    EXPECT_EQ(parts.attributes.vocabulary, 96);
    EXPECT_EQ(FirstOf(graph, OpKind::kTensorGather)->inputs[0], parts.outputs[0].value);
  }
}

// With fewer columns a chunk has more rows, and one chunk is kept.
TEST(VocabularyPass, ChunksGrowWithTheRanks) {
  const graph::Graph several = Divided(SpecOf({}), 2, /*chunk_rows=*/8);
  EXPECT_EQ(FirstOf(several, OpKind::kLmHeadLoss)->attributes.chunk_rows, 16);
  EXPECT_EQ(FirstOf(several, OpKind::kLmHeadParts)->outputs.size(), 1);
  const graph::Graph one = Divided(SpecOf({}), 2, /*chunk_rows=*/16);
  EXPECT_EQ(FirstOf(one, OpKind::kLmHeadLoss)->attributes.chunk_rows, 32);
  EXPECT_EQ(FirstOf(one, OpKind::kLmHeadParts)->outputs.size(), 2);
}

// A head over the words that something else reads too: all is whole.
TEST(VocabularyPass, ATableThatAnotherOpReadsIsWhole) {
  auto graph = models::BuildModel(SpecOf({}).model(), {.batch = 2, .sequence = 16});
  ASSERT_TRUE(graph.ok()) << graph.status();
  graph::Op other = *FirstOf(*graph, OpKind::kAttention);
  other.inputs = {WordsOf(*graph, "transformer.wte.weight").value};
  other.outputs.clear();
  other.kind = OpKind::kScale;
  graph->ops.insert(graph->ops.begin(), other);
  DivideVocabulary(*graph, 2);
  EXPECT_TRUE(WordsOf(*graph, "transformer.wte.weight").division.whole());
  EXPECT_EQ(FirstOf(*graph, OpKind::kLmHeadParts), nullptr);
}

// Logits are made once where they are kept, and twice where there are several chunks; what is made
// again is no work of the model.
TEST(VocabularyPass, WorkAndBytesOfTheHead) {
  const v1::JobSpec spec = SpecOf({.layers = 1, .vocabulary = 50000});
  const double product = 2.0 * 128 * 64 * 50000;
  auto alone = PlanOn(spec, 1), kept = PlanOn(spec, 4), again = PlanOn(spec, 4, 3200000);
  ASSERT_TRUE(alone.ok() && kept.ok() && again.ok()) << again.status();
  EXPECT_EQ(PlannedOf(*alone, OpKind::kLmHeadLossBackward)->flops, 3 * product);
  const double own = 2.0 * 128 * 64 * 12504;  // with padding
  EXPECT_EQ(PlannedOf(*kept, OpKind::kLmHeadParts)->flops, own);
  EXPECT_EQ(PlannedOf(*kept, OpKind::kLmHeadLossBackward)->flops, 2 * own);
  EXPECT_EQ(PlannedOf(*again, OpKind::kLmHeadLossBackward)->flops, 3 * own);
  EXPECT_EQ(kept->flops_per_step, again->flops_per_step);
  EXPECT_EQ(kept->recompute_flops_per_step, 0);
  EXPECT_EQ(again->recompute_flops_per_step, 3 * own);  // of the step's three micro-steps
  // 4 floats of each row, from each of the others.
  EXPECT_EQ(GatherOfLogits(*kept)->wire_bytes, 3 * 16 * 128);
  EXPECT_EQ(kept->parameters, alone->parameters);
  EXPECT_LT(kept->arena_bytes, 0.4 * static_cast<double>(alone->arena_bytes));
}

TEST(VocabularyPass, IsVerified) {
  const absl::StatusOr<StepPlan> plan = PlanOn(LlamaOf(96, true), 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Verify(*plan), absl::OkStatus());
  StepPlan bytes = *plan;
  GatherOfLogits(bytes)->wire_bytes += 16;
  EXPECT_THAT(Verify(bytes).message(), HasSubstr("tensor_gather sends"));
  StepPlan own = *plan;  // each rank by what it knows itself
  GatherOfLogits(own)->op.kind = OpKind::kAdd;
  EXPECT_THAT(VerifySums(own, own.train).message(), HasSubstr("what every tensor rank knows"));
  StepPlan rows = *plan;  // an embedding of this rank's rows alone
  PlannedOf(rows, OpKind::kEmbedding)->op.inputs.resize(6);
  EXPECT_THAT(VerifySums(rows, rows.train).message(), HasSubstr("embedding reads"));
  StepPlan sum = *plan;
  PlannedOp* reduce = PlannedOf(sum, OpKind::kTensorReduce);  // of the tokens' rows
  reduce->op.kind = OpKind::kAdd;
  EXPECT_THAT(VerifySums(sum, sum.train).message(), HasSubstr("is read by add"));
}

}  // namespace
}  // namespace milepost::plan
