#include "engine/models/task_heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/spec/model_sizes.h"
#include "common/spec/validate.h"
#include "engine/ops/backward.h"
#include "engine/ops/reference/gradient_check.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Shape;
using testing::IsEmpty;

constexpr int64_t kWidth = 8;
constexpr int64_t kFewTokens = 11;

v1::ModelSpec WithHeads(const std::string& family) {
  v1::JobSpec spec;
  v1::ModelSpec& model = *spec.mutable_model();
  const auto sizes = [](auto* of_family) {
    of_family->set_layers(1);
    of_family->set_width(kWidth);
    of_family->set_heads(2);
    of_family->set_context(6);
    of_family->set_vocabulary(kFewTokens);
  };
  if (family == "gpt2") sizes(model.mutable_gpt2());
  if (family == "bert") sizes(model.mutable_bert());
  if (family == "llama") {
    sizes(model.mutable_llama());
    model.mutable_llama()->set_hidden(12);
  }
  if (family == "resnet") {
    model.mutable_resnet()->add_stages()->set_layers(1);
    model.mutable_resnet()->set_width(kWidth);
    model.mutable_resnet()->set_classes(kFewTokens);
    model.mutable_resnet()->set_image_size(12);
  }
  if (family == "vit") {
    model.mutable_vit()->set_layers(1);
    model.mutable_vit()->set_width(kWidth);
    model.mutable_vit()->set_heads(2);
    model.mutable_vit()->set_classes(kFewTokens);
    model.mutable_vit()->set_image_size(12);
    model.mutable_vit()->set_patch_size(4);
  }
  for (const bool first : {true, false}) {
    v1::TaskHeadSpec& head = *model.add_heads();
    head.set_name(first ? "few" : "many");
    head.set_classes(first ? 3 : 70);
    head.set_weight(first ? 2 : 0.5);
  }
  model.set_head_weight(0.25);
  NormalizeJobSpec(&spec);
  return model;
}

Graph BuildWithHeads(const v1::ModelSpec& model, const ModelOptions& options) {
  absl::StatusOr<Graph> graph = BuildModel(model, options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

ModelOptions OptionsOf(const v1::ModelSpec& model, Mode mode = Mode::kTraining) {
  const bool images = SizesOf(model).images;
  return {
      .mode = mode, .batch = 3, .sequence = images ? 1 : 6, .lm_head_chunk_rows = images ? 0 : 16};
}

class TaskHeads : public testing::TestWithParam<const char*> {};

TEST_P(TaskHeads, FollowTheFamilysOwnInItsBlock) {
  const v1::ModelSpec model = WithHeads(GetParam());
  const Graph graph = BuildWithHeads(model, OptionsOf(model));
  ASSERT_EQ(graph.losses.size(), 3u);
  const std::vector<double> weights = {0.25, 2, 0.5};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(graph.losses[i].weight, weights[i]);
  EXPECT_EQ(graph.losses[1].name, "few");
  EXPECT_EQ(graph.losses[1].targets, graph.Input(LabelsInput("few")));
  EXPECT_NE(graph.losses[0].targets, graph.losses[1].targets);
  const size_t first = graph.parameters.size() - 4;
  const std::vector<std::string> names = {"heads.few.weight", "heads.few.bias", "heads.many.weight",
                                          "heads.many.bias"};
  const std::vector<Shape> shapes = {{3, kWidth}, {3}, {70, kWidth}, {70}};
  for (size_t i = 0; i < 4; ++i) {
    const graph::Value& value = graph.values[graph.parameters[first + i].value];
    EXPECT_EQ(value.name, names[i]);
    EXPECT_EQ(value.shape, shapes[i]);
    EXPECT_EQ(value.block, static_cast<int>(graph.blocks.size()) - 1);
    EXPECT_EQ(graph.parameters[first + i].decay, i % 2 == 0);
  }
}

TEST_P(TaskHeads, GradientsAreThoseOfFiniteDifferences) {
  const v1::ModelSpec model = WithHeads(GetParam());
  EXPECT_THAT(
      graph::GradientErrors(BuildWithHeads(model, OptionsOf(model)),
                            {.vocabulary = kFewTokens, .elements_per_parameter = 5, .step = 1e-6}),
      IsEmpty());
}

// The same parameters in the same order, whether a loss is made or not.
TEST_P(TaskHeads, AreInEveryMode) {
  const v1::ModelSpec model = WithHeads(GetParam());
  const Graph training = BuildWithHeads(model, OptionsOf(model));
  std::vector<Mode> modes = {Mode::kEvaluation};
  if (!SizesOf(model).images) modes.push_back(Mode::kGeneration);
  for (const Mode mode : modes) {
    const Graph graph = BuildWithHeads(model, OptionsOf(model, mode));
    ASSERT_EQ(graph.parameters.size(), training.parameters.size());
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      EXPECT_EQ(graph.values[graph.parameters[i].value].name,
                training.values[training.parameters[i].value].name);
    }
    EXPECT_EQ(graph.Input(LabelsInput("few")) == kNoValue, mode == Mode::kGeneration);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TaskHeads,
                         testing::Values("gpt2", "llama", "bert", "resnet", "vit"),
                         [](const auto& family) { return std::string(family.param); });

// Logits of many classes are made in chunks as large as those of the vocabulary.
TEST(TaskHeadsChunks, AreNoLargerThanTheOwnHeads) {
  const v1::ModelSpec model = WithHeads("gpt2");
  const Graph graph =
      BuildWithHeads(model, {.batch = 100, .sequence = 6, .lm_head_chunk_rows = 320});
  std::vector<int64_t> rows;
  for (const graph::Op& op : graph.ops) {
    if (op.kind == graph::OpKind::kLmHeadLoss) rows.push_back(op.attributes.chunk_rows);
  }
  EXPECT_THAT(rows, testing::ElementsAre(320, 600, 320 * kFewTokens / 70));
}

}  // namespace
}  // namespace milepost::models
