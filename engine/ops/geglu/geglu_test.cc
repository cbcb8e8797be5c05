#include "engine/ops/geglu/geglu.h"

#include <utility>

#include "engine/graph/builder.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/reference/gradient_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::ops {
namespace {

// A feed-forward layer between an embedding and a head, against finite differences.
TEST(GeGlu, TheGradientIsThatOfTheForward) {
  constexpr int64_t kVocabulary = 9;
  constexpr int64_t kWidth = 6;
  graph::Builder b({.batch = 2, .sequence = 5});
  b.BeginBlock("only");
  const auto weight = [&b](const char* name, const graph::Shape& shape) {
    return b.Parameter(name, shape, graph::Initializer::kNormal, 1);
  };
  const graph::ValueId wte = weight("wte", {kVocabulary, kWidth});
  const graph::ValueId x =
      Embedding(b, "x", b.Tokens(), wte, {.wpe = weight("wpe", {7, kWidth})}, 0);
  const graph::ValueId both =
      LinearRows(b, "up", x, {weight("g", {5, kWidth}), weight("u", {5, kWidth})});
  const graph::ValueId y = LinearRows(b, "down", GeGlu(b, "act", both), {weight("d", {kWidth, 5})});
  LmHeadLoss(b, "loss", y, wte, b.Targets(), 4);
  absl::StatusOr<graph::Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int micro_steps : {1, 2}) {
    EXPECT_THAT(graph::GradientErrors(*graph, {.vocabulary = kVocabulary,
                                               .elements_per_parameter = 1000,
                                               .micro_steps = micro_steps}),
                testing::IsEmpty());
  }
}

TEST(GeGlu, AnOddWidthIsRefused) {
  graph::Builder b({.batch = 1, .sequence = 2});
  b.BeginBlock("only");
  const graph::ValueId wte = b.Parameter("wte", {9, 5}, graph::Initializer::kNormal, 1);
  const graph::ValueId wpe = b.Parameter("wpe", {2, 5}, graph::Initializer::kNormal, 1);
  GeGlu(b, "act", Embedding(b, "x", b.Tokens(), wte, {.wpe = wpe}, 0));
  const absl::StatusOr<graph::Graph> graph = std::move(b).Finish();
  EXPECT_THAT(graph.status().message(), testing::HasSubstr("width 5 is not two halves"));
}

}  // namespace
}  // namespace milepost::ops
