#include "engine/graph/builder.h"

#include <utility>

#include "engine/ops/attention/attention.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/gelu/gelu.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/rope/rope.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::graph {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BuilderTest : public testing::Test {
 protected:
  BuilderTest() { b.BeginBlock("block"); }
  ValueId Parameter(const char* name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 0.02);
  }
  ValueId Embed() {
    return ops::Embedding(b, "x", b.Tokens(), Parameter("wte", {11, 8}),
                          {.wpe = Parameter("wpe", {4, 8})}, 0);
  }
  std::string Error() {
    const absl::StatusOr<Graph> graph = std::move(b).Finish();
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(graph.status().message());
  }

  Builder b{{.compute_dtype = DType::kBf16, .batch = 3, .sequence = 4}};
};

TEST_F(BuilderTest, GivesValuesShapesTypesAndBlocks) {
  const ValueId x = Embed();
  b.BeginBlock("second");
  const ValueId weight = Parameter("w", {8, 6});
  const ValueId bias = Parameter("b", {6});
  const ValueId y = ops::Linear(b, "y", x, weight, bias);
  const ValueId attention = ops::Attention(b, "a", y, {.heads = 2});
  const absl::StatusOr<Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->values[y].shape, (Shape{12, 6}));
  EXPECT_EQ(graph->values[y].dtype, DType::kBf16);
  EXPECT_EQ(graph->values[attention].shape, (Shape{12, 2}));
  EXPECT_EQ(graph->values[x].block, 0);
  EXPECT_EQ(graph->values[y].block, 1);
  EXPECT_EQ(graph->ops.back().outputs.size(), 2u);
  const Value& lse = graph->values[graph->ops.back().outputs[1].value];
  EXPECT_EQ(lse.name, "a.lse");
  EXPECT_EQ(lse.dtype, DType::kF32);
  EXPECT_EQ(lse.shape, (Shape{3, 2, 4}));
  EXPECT_TRUE(graph->parameters[2].decay);
  EXPECT_FALSE(graph->parameters[3].decay);
}

TEST_F(BuilderTest, NamesTheOperandThatDoesNotFit) {
  ops::Linear(b, "y", Embed(), Parameter("w", {7, 6}), Parameter("b", {6}));
  EXPECT_THAT(Error(), AllOf(HasSubstr("y: "), HasSubstr("weight (w)"), HasSubstr("BF16[7,6]"),
                             HasSubstr("expected BF16[8,6]")));
}

TEST_F(BuilderTest, KeepsTheFirstError) {
  const ValueId bad = ops::Linear(b, "first", Embed(), Parameter("w", {7, 6}), Parameter("b", {6}));
  ops::Gelu(b, "second", bad);
  EXPECT_THAT(Error(), HasSubstr("first: "));
}

TEST_F(BuilderTest, RefusesRepeatedNames) {
  Parameter("w", {2, 2});
  Parameter("w", {2, 2});
  EXPECT_THAT(Error(), HasSubstr("w: two values"));
}

TEST_F(BuilderTest, RefusesHeadsThatDoNotDivide) {
  ops::Attention(b, "a", ops::Linear(b, "y", Embed(), Parameter("w", {8, 6}), Parameter("b", {6})),
                 {.heads = 4});
  EXPECT_THAT(Error(), HasSubstr("4 heads"));
}

TEST_F(BuilderTest, RefusesSequencesLongerThanPositions) {
  ops::Embedding(b, "x", b.Tokens(), Parameter("wte", {11, 8}), {.wpe = Parameter("wpe", {3, 8})},
                 0);
  EXPECT_THAT(Error(), HasSubstr("longer than the 3 positions"));
}

TEST_F(BuilderTest, RefusesChunksOutsideTheBatch) {
  ops::LmHeadLoss(b, "loss", Embed(), Parameter("head", {11, 8}), b.Targets(), 13);
  EXPECT_THAT(Error(), HasSubstr("[1, 12]"));
}

TEST_F(BuilderTest, RefusesValuesThatDoNotExist) {
  ops::Gelu(b, "g", kNoValue);
  EXPECT_THAT(Error(), HasSubstr("x is no value"));
}

TEST_F(BuilderTest, PacksWeightsAndGroupsHeads) {
  const ValueId qkv = ops::LinearRows(
      b, "qkv", Embed(), {Parameter("q", {16, 8}), Parameter("k", {4, 8}), Parameter("v", {4, 8})});
  const ValueId table = ops::RopeTable(b, "table", 4, {});
  const ValueId out =
      ops::Attention(b, "a", ops::Rope(b, "r", qkv, table, 4, 1), {.heads = 4, .kv_heads = 1});
  const absl::StatusOr<Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->values[qkv].shape, (Shape{12, 24}));
  EXPECT_EQ(graph->values[table].shape, (Shape{4, 4}));
  EXPECT_EQ(graph->values[table].dtype, DType::kF32);
  EXPECT_EQ(graph->values[out].shape, (Shape{12, 16}));
  EXPECT_EQ(graph->ops.back().attributes.kv_heads, 1);
}

TEST_F(BuilderTest, RefusesWeightsOfAnotherInput) {
  ops::LinearRows(b, "y", Embed(), {Parameter("w1", {6, 8}), Parameter("w2", {6, 7})});
  EXPECT_THAT(Error(), AllOf(HasSubstr("y: weight (w2)"), HasSubstr("expected BF16[6,8]")));
}

TEST_F(BuilderTest, RefusesGroupsThatDoNotDivide) {
  ops::Attention(b, "a", ops::LinearRows(b, "qkv", Embed(), {Parameter("w", {40, 8})}),
                 {.heads = 4, .kv_heads = 3});
  EXPECT_THAT(Error(), HasSubstr("4 heads are no multiple of 3"));
}

TEST_F(BuilderTest, RefusesATableOfOtherHeads) {
  const ValueId qkv = ops::LinearRows(b, "qkv", Embed(), {Parameter("w", {48, 8})});
  ops::Rope(b, "r", qkv, ops::RopeTable(b, "table", 4, {}), 4, 1);
  EXPECT_THAT(Error(), HasSubstr("table"));
}

}  // namespace
}  // namespace milepost::graph
