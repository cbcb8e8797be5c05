#include "engine/ops/dora/dora.h"

#include <utility>

#include "engine/graph/builder.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/lora/lora.h"
#include "engine/ops/reference/gradient_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::ops {
namespace {

constexpr int64_t kDoraVocabulary = 9;
constexpr int64_t kDoraWidth = 6;

struct DoraModel {
  graph::Builder b{{.batch = 2, .sequence = 5}};
  graph::ValueId Weight(const char* name, const graph::Shape& shape) {
    return b.Parameter(name, shape, graph::Initializer::kNormal, 1);
  }
  graph::ValueId Tokens(graph::ValueId wte) {
    return Embedding(b, "x", b.Tokens(), wte, {.wpe = Weight("wpe", {7, kDoraWidth})}, 0);
  }
};

// Three parts: a magnitude alone, a bias alone, and both. Norms are constants to the backward, and
// so they are of weights that nothing else reads.
TEST(Dora, TheGradientIsThatOfTheForward) {
  DoraModel layer;
  graph::Builder& b = layer.b;
  b.BeginBlock("only");
  const graph::ValueId wte = layer.Weight("wte", {kDoraVocabulary, kDoraWidth});
  const graph::ValueId x = layer.Tokens(wte);
  const graph::ValueId base =
      LinearRows(b, "base", x,
                 {layer.Weight("q", {4, kDoraWidth}), layer.Weight("k", {3, kDoraWidth}),
                  layer.Weight("v", {2, kDoraWidth})});
  const graph::ValueId h = LinearRows(
      b, "h", x, {layer.Weight("qa", {2, kDoraWidth}), layer.Weight("va", {2, kDoraWidth})});
  const graph::ValueId v =
      Lora(b, "adapted", base, h, {layer.Weight("qb", {4, 2}), layer.Weight("vb", {2, 2})}, {0, 7});
  const graph::ValueId rows =
      DoraNorms(b, "rows", layer.Weight("constant.q", {4, kDoraWidth}),
                layer.Weight("constant.qa", {2, kDoraWidth}), layer.Weight("constant.qb", {4, 2}),
                1.5, /*transposed=*/true);
  const graph::ValueId columns =
      DoraNorms(b, "columns", layer.Weight("constant.v", {kDoraWidth, 2}),
                layer.Weight("constant.va", {2, kDoraWidth}), layer.Weight("constant.vb", {2, 2}),
                0.5, /*transposed=*/false);
  const graph::ValueId y = Dora(b, "y", v,
                                {{.column = 0, .norms = rows, .change = layer.Weight("qd", {4})},
                                 {.column = 4, .bias = layer.Weight("k.bias", {3})},
                                 {.column = 7,
                                  .norms = columns,
                                  .change = layer.Weight("vd", {2}),
                                  .bias = layer.Weight("v.bias", {2})}});
  LmHeadLoss(b, "loss", LinearRows(b, "out", y, {layer.Weight("o", {kDoraWidth, 9})}), wte,
             b.Targets(), 4);
  absl::StatusOr<graph::Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (graph::Parameter& p : graph->parameters) {
    p.base = graph->values[p.value].name.starts_with("constant.");
  }
  for (const int micro_steps : {1, 2}) {
    EXPECT_THAT(graph::GradientErrors(*graph, {.vocabulary = kDoraVocabulary,
                                               .elements_per_parameter = 1000,
                                               .micro_steps = micro_steps,
                                               .skips_base = true}),
                testing::IsEmpty());
  }
}

TEST(Dora, PartsThatDoNotFitAreRefused) {
  const auto problem = [](const auto& parts) {
    DoraModel layer;
    graph::Builder& b = layer.b;
    b.BeginBlock("only");
    const graph::ValueId x = layer.Tokens(layer.Weight("wte", {kDoraVocabulary, kDoraWidth}));
    const graph::ValueId v = LinearRows(b, "v", x, {layer.Weight("w", {9, kDoraWidth})});
    Dora(b, "y", v, parts(layer));
    return std::string(std::move(b).Finish().status().message());
  };
  using Parts = std::vector<DoraPart>;
  EXPECT_THAT(problem([](DoraModel&) { return Parts{}; }), testing::HasSubstr("0 parts"));
  EXPECT_THAT(problem([](DoraModel&) {
                return Parts{{.column = 0}, {.column = 9}};
              }),
              testing::HasSubstr("a part of 0 columns"));
  EXPECT_THAT(
      problem([](DoraModel& m) { return Parts{{.column = 0, .bias = m.Weight("bias", {8})}}; }),
      testing::HasSubstr("bias"));
  EXPECT_THAT(
      problem([](DoraModel& m) { return Parts{{.column = 0, .change = m.Weight("d", {9})}}; }),
      testing::HasSubstr("norms and changes come together"));
}

}  // namespace
}  // namespace milepost::ops
