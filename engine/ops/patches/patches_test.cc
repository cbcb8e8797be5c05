#include "engine/ops/patches/patches.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/graph/freeze.h"
#include "engine/ops/backward.h"
#include "engine/ops/classifier/classifier.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/reference/gradient_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::graph {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct PatchSizes {
  int64_t side = 2;     // of a patch, in an image of 4 x 4
  int64_t patches = 4;  // what the builder is told
  int64_t places = 5;   // rows of the positions' table
  Shape weight = {6, 3, 2, 2};
};

absl::StatusOr<Graph> PatchModel(const PatchSizes& sizes) {
  Builder b({.batch = 3});
  b.BeginBlock("only");
  const auto parameter = [&b](const char* name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 1);
  };
  const ValueId cls = parameter("cls", {1, 1, 6});
  const ValueId positions = parameter("positions", {1, sizes.places, 6});
  b.SetSequence(sizes.patches);
  const ValueId rows =
      ops::ImagePatches(b, "patches", b.Images(4, 4), sizes.side, {0.1, 0.2, 0.3}, {0.4, 0.5, 0.6});
  const ValueId embedded = ops::LinearRows(b, "embedded", rows, {parameter("w", sizes.weight)},
                                           {parameter("bias", {6})});
  b.SetSequence(sizes.patches + 1);
  const ValueId x = ops::PatchTokens(b, "tokens", embedded, cls, positions);
  const ValueId y = ops::LinearRows(b, "y", x, {parameter("w2", {6, 6})});
  b.SetSequence(1);
  const ValueId first = ops::FirstRows(b, "first", y);
  ops::ClassifierLoss(b, "class", first, b.Targets(), 0);
  return std::move(b).Finish();
}

TEST(PatchOps, GradientsAreThoseOfFiniteDifferences) {
  const absl::StatusOr<Graph> graph = PatchModel({});
  ASSERT_TRUE(graph.ok()) << graph.status();
  // Of patches nothing reaches the class here: their gradients are zeros (vit_test.cc has others).
  EXPECT_THAT(GradientErrors(*graph, {.vocabulary = 6, .micro_steps = 2}), IsEmpty());
}

TEST(PatchOps, GradientsThatAreNotWantedAreLeftOut) {
  for (const int frozen : {0, 1}) {
    Graph graph = *PatchModel({});
    ASSERT_EQ(ops::AddBackward(graph), absl::OkStatus());
    std::vector<bool> freeze(graph.parameters.size(), false);
    freeze[frozen] = true;
    FreezeParameters(graph, freeze);
    int seen = 0;
    for (const Op& op : graph.ops) {
      EXPECT_FALSE(op.kind == OpKind::kLinearBackwardInput && op.outputs[0].value != kNoValue &&
                   graph.values[op.outputs[0].value].name == "grad patches");
      if (op.kind != OpKind::kPatchTokensBackward) continue;
      ++seen;
      EXPECT_EQ(op.outputs[1].value == kNoValue, frozen == 0);
      EXPECT_EQ(op.outputs[2].value == kNoValue, frozen == 1);
    }
    EXPECT_EQ(seen, 1);
  }
}

TEST(PatchOps, RefuseWhatDoesNotFit) {
  const auto refusal = [](const PatchSizes& sizes) {
    const absl::Status status = PatchModel(sizes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({.side = 3}), HasSubstr("patches: patches of 3 x 3 pixels"));
  EXPECT_THAT(refusal({.patches = 5}), HasSubstr("5 of them, are not an image of 4 x 4"));
  EXPECT_THAT(refusal({.places = 4}), HasSubstr("positions (positions) is F32[1,4,6]"));
  EXPECT_THAT(refusal({.weight = {6, 3, 2, 1}}),
              HasSubstr("weight (w) is F32[6,3,2,1], expected F32[6,12]"));
}

}  // namespace
}  // namespace milepost::graph
