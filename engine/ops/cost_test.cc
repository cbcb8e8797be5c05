#include "engine/ops/cost.h"

#include <utility>

#include "engine/graph/builder.h"
#include "engine/ops/attention/attention.h"
#include "engine/ops/backward.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "gtest/gtest.h"

namespace milepost::graph {
namespace {

Graph TrainingGraph(bool causal = true, int64_t window = 0) {
  Builder b({.compute_dtype = DType::kBf16, .batch = 2, .sequence = 4});
  b.BeginBlock("only");
  const auto parameter = [&b](const char* name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 1);
  };
  const ValueId wte = parameter("wte", {100, 16});
  const ValueId x = ops::Embedding(b, "x", b.Tokens(), wte, {.wpe = parameter("wpe", {4, 16})}, 0);
  const ValueId qkv = ops::Linear(b, "qkv", x, parameter("w", {16, 48}), parameter("b", {48}));
  const ValueId attended =
      ops::Attention(b, "a", qkv, {.heads = 2, .causal = causal, .window = window});
  ops::LmHeadLoss(b, "loss", attended, wte, b.Targets(), 8);
  Graph graph = *std::move(b).Finish();
  EXPECT_TRUE(ops::AddBackward(graph).ok());
  return graph;
}

ops::Cost CostOf(OpKind kind, bool causal = true, int64_t window = 0) {
  const Graph graph = TrainingGraph(causal, window);
  for (const Op& op : graph.ops) {
    if (op.kind == kind) return ops::OpCost(graph, op);
  }
  ADD_FAILURE() << "no " << Name(kind);
  return {};
}

TEST(Cost, CountsMatrixProducts) {
  EXPECT_EQ(CostOf(OpKind::kLinear).flops, 2.0 * 8 * 16 * 48);
  EXPECT_EQ(CostOf(OpKind::kLinearBackwardInput).flops, 2.0 * 8 * 16 * 48);
  EXPECT_EQ(CostOf(OpKind::kLinearBackwardWeight).flops, 2.0 * 8 * 16 * 48);
  EXPECT_EQ(CostOf(OpKind::kLmHeadLossBackward).flops, 3 * 2.0 * 8 * 16 * 100);
  EXPECT_EQ(CostOf(OpKind::kEmbedding).flops, 0);
}

TEST(Cost, CountsTheCausalHalfOfAttention) {
  // Pairs of positions per sequence: 4 * 5 / 2; each costs 2 FLOPs per element of width in each of
  // 2 (forward) or 5 (backward) products; 2 sequences.
  EXPECT_EQ(CostOf(OpKind::kAttention).flops, 2 * 2 * 2.0 * 10 * 16);
  EXPECT_EQ(CostOf(OpKind::kAttentionBackward).flops, 5 * 2 * 2.0 * 10 * 16);
}

TEST(Cost, CountsTheWindowOfAttention) {
  // Of four positions: 1, 2, 2 and 2 keys.
  EXPECT_EQ(CostOf(OpKind::kAttention, true, 2).flops, 2 * 2 * 2.0 * 7 * 16);
  EXPECT_EQ(CostOf(OpKind::kAttentionBackward, true, 2).flops, 5 * 2 * 2.0 * 7 * 16);
  EXPECT_EQ(CostOf(OpKind::kAttention, true, 9).flops, CostOf(OpKind::kAttention).flops);
}

TEST(Cost, CountsAllOfAttentionWithoutTheCausalMask) {
  EXPECT_EQ(CostOf(OpKind::kAttention, false).flops, 2 * 2 * 2.0 * 16 * 16);
  EXPECT_EQ(CostOf(OpKind::kAttentionBackward, false).flops, 5 * 2 * 2.0 * 16 * 16);
}

TEST(Cost, CountsBytesOnceAndAccumulatedOnesTwice) {
  EXPECT_EQ(CostOf(OpKind::kLinear).bytes, 2.0 * (8 * 16 + 16 * 48 + 48 + 8 * 48));
  EXPECT_EQ(CostOf(OpKind::kLinearBackwardWeight).bytes,
            2.0 * (8 * 16 + 8 * 48) + 2 * 4.0 * (16 * 48 + 48));
  EXPECT_EQ(CostOf(OpKind::kEmbedding).bytes, 8 * 4 + 3 * 2.0 * 8 * 16);  // not the whole table
}

}  // namespace
}  // namespace milepost::graph
