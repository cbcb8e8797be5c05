#include "engine/ops/preference/preference.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/graph/builder.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/reference/gradient_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::ops {
namespace {

constexpr int64_t kPairVocabulary = 9;
constexpr int64_t kPairWidth = 6;
constexpr int64_t kPairSequence = 8;

// In each sample two pairs of documents of 2 rows; the second sample has one only.
bool FillPairs(const std::string& name, std::vector<int32_t>& ids) {
  if (name != "documents" && name != "pairs") return false;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = static_cast<int32_t>(i % kPairSequence);
    const bool begins = row == 0 || (row == 4 && i < kPairSequence);
    ids[i] = name == "documents" ? row / 2 : begins ? 0 : -1;
  }
  return true;
}

// The reference is a matrix of its own, which is constant.
absl::StatusOr<graph::Graph> Build(const PreferenceOptions& options) {
  graph::Builder b({.batch = 2, .sequence = kPairSequence});
  b.BeginBlock("only");
  const auto weight = [&b](const char* name, const graph::Shape& shape) {
    return b.Parameter(name, shape, graph::Initializer::kNormal, 1);
  };
  const graph::ValueId wte = weight("wte", {kPairVocabulary, kPairWidth});
  const graph::ValueId x =
      Embedding(b, "x", b.Tokens(), wte, {.wpe = weight("wpe", {kPairSequence, kPairWidth})}, 0);
  const graph::ValueId y = LinearRows(b, "y", x, {weight("w", {kPairWidth, kPairWidth})});
  const graph::ValueId head = weight("head", {kPairVocabulary, kPairWidth});
  const graph::ValueId log_probs = LmHeadLogProbs(b, "log_probs", y, head, b.Targets(), 5);
  b.SetConstant(true);
  const graph::ValueId reference = LmHeadLogProbs(b, "reference", x, head, b.Targets(), 5);
  b.SetConstant(false);
  PreferenceLoss(b, "dpo", log_probs, reference,
                 b.Input("documents", DType::kI32, {2 * kPairSequence}), options);
  return std::move(b).Finish();
}

TEST(Preference, TheGradientIsThatOfTheForward) {
  for (const double smoothing : {0.0, 0.1}) {
    auto graph = Build({.beta = 0.8, .label_smoothing = smoothing});
    ASSERT_TRUE(graph.ok()) << graph.status();
    // What the reference is made of moves it as well, and that is no gradient.
    for (graph::Parameter& parameter : graph->parameters) {
      parameter.base = graph->values[parameter.value].name != "w";
    }
    for (const int micro_steps : {1, 2}) {
      EXPECT_THAT(graph::GradientErrors(*graph, {.vocabulary = kPairVocabulary,
                                                 .elements_per_parameter = 1000,
                                                 .micro_steps = micro_steps,
                                                 .skips_base = true,
                                                 .fill = FillPairs}),
                  testing::IsEmpty());
    }
  }
}

TEST(Preference, OddOptionsAreRefused) {
  EXPECT_THAT(Build({.beta = 0}).status().message(), testing::HasSubstr("beta 0 is not above 0"));
  EXPECT_THAT(Build({.label_smoothing = 0.5}).status().message(),
              testing::HasSubstr("label smoothing 0.5 is not in [0, 0.5)"));
}

}  // namespace
}  // namespace milepost::ops
