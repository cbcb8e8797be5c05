#include "engine/graph/freeze.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/graph/builder.h"
#include "engine/ops/backward.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/gelu/gelu.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/norm/norm.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "gtest/gtest.h"

namespace milepost::graph {
namespace {

// Embedding, two layers of one product each, an untied head.
Graph Model() {
  Builder b({.batch = 2, .sequence = 5});
  b.BeginBlock("only");
  const auto parameter = [&b](const char* name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 1);
  };
  const ValueId wte = parameter("wte", {9, 6});
  ValueId x = ops::Embedding(b, "x", b.Tokens(), wte, {.wpe = parameter("wpe", {7, 6})}, 0);
  x = ops::LayerNorm(b, "ln", x, parameter("gamma", {6}), parameter("beta", {6})).y;
  x = ops::Linear(b, "low", x, parameter("w1", {6, 6}), parameter("b1", {6}));
  x = ops::Linear(b, "high", ops::Gelu(b, "gelu", x), parameter("w2", {6, 6}),
                  parameter("b2", {6}));
  ops::LmHeadLoss(b, "loss", x, parameter("head", {9, 6}), b.Targets(), 4);
  absl::StatusOr<Graph> graph = std::move(b).Finish();
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(ops::AddBackward(*graph), absl::OkStatus());
  return *std::move(graph);
}

Graph Frozen(const std::vector<std::string>& names) {
  Graph graph = Model();
  std::vector<bool> frozen;
  for (const Parameter& p : graph.parameters) {
    const std::string& name = graph.values[p.value].name;
    frozen.push_back(std::find(names.begin(), names.end(), name) != names.end());
  }
  FreezeParameters(graph, frozen);
  return graph;
}

int Count(const Graph& graph, OpKind kind) {
  return static_cast<int>(std::count_if(graph.ops.begin(), graph.ops.end(),
                                        [kind](const Op& op) { return op.kind == kind; }));
}

// Gradients by parameter name after one micro-step.
std::vector<std::pair<std::string, std::vector<double>>> GradientsOf(const Graph& graph) {
  ReferenceInterpreter reference(graph);
  for (const Parameter& p : graph.parameters) {
    std::vector<double>& values = reference.values(p.value);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.1 * static_cast<double>((i * 7 + static_cast<size_t>(p.value) * 5) % 11) - 0.4;
    }
  }
  for (size_t i = 0; i < 10; ++i) {
    reference.integers(graph.Input("tokens"))[i] = static_cast<int32_t>(i * 4 % 9);
    reference.integers(graph.Input("targets"))[i] = static_cast<int32_t>(i * 5 % 9);
  }
  reference.Run({});
  std::vector<std::pair<std::string, std::vector<double>>> gradients;
  for (const Parameter& p : graph.parameters) {
    if (p.gradient == kNoValue) continue;
    gradients.emplace_back(graph.values[p.value].name, reference.values(p.gradient));
  }
  return gradients;
}

TEST(Freeze, AFrozenHeadHasNoGradientToMake) {
  const Graph graph = Frozen({"head"});
  int heads = 0;
  for (const Op& op : graph.ops) {
    if (op.kind != OpKind::kLmHeadLossBackward) continue;
    ++heads;
    EXPECT_EQ(op.outputs[2].value, kNoValue);
    EXPECT_NE(op.outputs[1].value, kNoValue);
  }
  EXPECT_EQ(heads, 1);
  for (const Value& value : graph.values) EXPECT_NE(value.name, "discarded grad head");
}

TEST(Freeze, TheBackwardEndsAboveFrozenLayers) {
  const Graph graph = Frozen({"wte", "wpe", "gamma", "beta", "w1", "b1"});
  EXPECT_EQ(Count(graph, OpKind::kLinearBackwardWeight), 1);
  EXPECT_EQ(Count(graph, OpKind::kLinearBackwardInput), 0);
  EXPECT_EQ(Count(graph, OpKind::kGeluBackward), 0);
  EXPECT_EQ(Count(graph, OpKind::kLayerNormBackward), 0);
  EXPECT_EQ(Count(graph, OpKind::kEmbeddingBackward), 0);
  EXPECT_EQ(Count(graph, OpKind::kEmbedding), 1);
}

TEST(Freeze, UpperLayersStillPassGradientsDown) {
  const Graph graph = Frozen({"w2", "b2", "head"});
  EXPECT_EQ(Count(graph, OpKind::kLinearBackwardWeight), 1);
  EXPECT_EQ(Count(graph, OpKind::kLinearBackwardInput), 2);
  EXPECT_EQ(Count(graph, OpKind::kLmHeadLossBackward), 1);
}

TEST(Freeze, WhatIsLeftHasTheSameGradients) {
  const auto all = GradientsOf(Model());
  ASSERT_EQ(all.size(), 9u);
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"wte", "wpe", "gamma", "w1"}, {"w2", "head", "beta"}, {"b1"}}) {
    const auto rest = GradientsOf(Frozen(names));
    EXPECT_EQ(rest.size(), all.size() - names.size());
    for (const auto& gradient : rest) {
      EXPECT_NE(std::find(all.begin(), all.end(), gradient), all.end()) << gradient.first;
    }
  }
}

TEST(Freeze, NothingFrozenChangesNothing) {
  EXPECT_EQ(Frozen({}).ops.size(), Model().ops.size());
  EXPECT_EQ(Frozen({}).values.size(), Model().values.size());
}

}  // namespace
}  // namespace milepost::graph
