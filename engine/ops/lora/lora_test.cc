#include "engine/ops/lora/lora.h"

#include <utility>

#include "engine/graph/builder.h"
#include "engine/ops/dropout/dropout.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/reference/gradient_check.h"
#include "engine/ops/scale/scale.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::ops {
namespace {

constexpr int64_t kVocabulary = 9;
constexpr int64_t kWidth = 6;

struct LoraModel {
  graph::Builder b{{.batch = 2, .sequence = 5}};
  graph::ValueId Weight(const char* name, const graph::Shape& shape) {
    return b.Parameter(name, shape, graph::Initializer::kNormal, 1);
  }
};

// A layer of three parts, of which the outer two have adapters, against finite differences.
TEST(Lora, TheGradientIsThatOfTheForward) {
  LoraModel layer;
  graph::Builder& b = layer.b;
  b.BeginBlock("only");
  const graph::ValueId wte = layer.Weight("wte", {kVocabulary, kWidth});
  const graph::ValueId x =
      Embedding(b, "x", b.Tokens(), wte, {.wpe = layer.Weight("wpe", {7, kWidth})}, 0);
  const graph::ValueId base =
      LinearRows(b, "base", x,
                 {layer.Weight("q", {4, kWidth}), layer.Weight("k", {3, kWidth}),
                  layer.Weight("v", {2, kWidth})});
  const graph::ValueId h =
      LinearRows(b, "h", Dropout(b, "dropped", x, 0.3),
                 {layer.Weight("qa", {2, kWidth}), layer.Weight("va", {2, kWidth})});
  const graph::ValueId y = Lora(b, "y", base, Scale(b, "scaled", h, 1.5),
                                {layer.Weight("qb", {4, 2}), layer.Weight("vb", {2, 2})}, {0, 7});
  LmHeadLoss(b, "loss", LinearRows(b, "out", y, {layer.Weight("o", {kWidth, 9})}), wte, b.Targets(),
             4);
  absl::StatusOr<graph::Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int micro_steps : {1, 2}) {
    EXPECT_THAT(graph::GradientErrors(*graph, {.vocabulary = kVocabulary,
                                               .elements_per_parameter = 1000,
                                               .micro_steps = micro_steps}),
                testing::IsEmpty());
  }
}

TEST(Lora, ColumnsThatAreNotFreeAreRefused) {
  for (const auto& [first, second] : {std::pair<int64_t, int64_t>{0, 3}, {0, 6}, {4, 0}}) {
    LoraModel layer;
    graph::Builder& b = layer.b;
    b.BeginBlock("only");
    const graph::ValueId wte = layer.Weight("wte", {kVocabulary, kWidth});
    const graph::ValueId x =
        Embedding(b, "x", b.Tokens(), wte, {.wpe = layer.Weight("wpe", {7, kWidth})}, 0);
    const graph::ValueId base = LinearRows(b, "base", x, {layer.Weight("w", {9, kWidth})});
    const graph::ValueId h =
        LinearRows(b, "h", x, {layer.Weight("a", {2, kWidth}), layer.Weight("c", {2, kWidth})});
    Lora(b, "y", base, h, {layer.Weight("b", {4, 2}), layer.Weight("d", {4, 2})}, {first, second});
    const absl::StatusOr<graph::Graph> graph = std::move(b).Finish();
    EXPECT_THAT(graph.status().message(), testing::HasSubstr("are not free"));
  }
}

}  // namespace
}  // namespace milepost::ops
