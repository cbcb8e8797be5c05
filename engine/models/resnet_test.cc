#include "engine/models/resnet.h"

#include <map>
#include <string>

#include "common/spec/validate.h"
#include "engine/models/model.h"
#include "engine/ops/backward.h"
#include "engine/ops/reference/gradient_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Graph;
using graph::OpKind;
using graph::Shape;
using testing::HasSubstr;
using testing::IsEmpty;

v1::ModelSpec Normalized(const v1::ResNetSpec& resnet) {
  v1::JobSpec spec;
  *spec.mutable_model()->mutable_resnet() = resnet;
  NormalizeJobSpec(&spec);
  return spec.model();
}

v1::ModelSpec Tiny(bool bottleneck) {
  v1::ResNetSpec resnet;
  for (int64_t layers : {1, 2}) resnet.add_stages()->set_layers(layers);
  resnet.set_bottleneck(bottleneck);
  resnet.set_classes(5);
  resnet.set_width(4);
  resnet.set_image_size(12);
  resnet.set_label_smoothing(0.1);
  return Normalized(resnet);
}

Graph BuildResnet(const v1::ModelSpec& model, const ModelOptions& options) {
  absl::StatusOr<Graph> graph = BuildModel(model, options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

// torchvision's resnet18 ... resnet152: sum(p.numel() for p in model.parameters()).
TEST(ResNet, HasTheWellKnownNumbersOfParameters) {
  const std::map<int64_t, int64_t> known = {
      {18, 11689512}, {34, 21797672}, {50, 25557032}, {101, 44549160}, {152, 60192808}};
  for (const auto& [depth, parameters] : known) {
    v1::ResNetSpec resnet;
    resnet.set_depth(depth);
    resnet.set_classes(1000);
    const Graph graph = BuildResnet(Normalized(resnet), {.batch = 1});
    int64_t found = 0;
    for (const graph::Parameter& p : graph.parameters) {
      found += graph::Elements(graph.values[p.value].shape);
    }
    EXPECT_EQ(found, parameters) << depth;
    EXPECT_EQ(graph.blocks.size(), (depth - 2) / (depth < 50 ? 2 : 3) + 2) << depth;
  }
}

TEST(ResNet, HasHuggingFacesNames) {
  const Graph graph = BuildResnet(Tiny(true), {.batch = 2});
  std::map<std::string, Shape> found;
  for (const graph::Parameter& p : graph.parameters) {
    found[graph.values[p.value].name] = graph.values[p.value].shape;
  }
  for (const graph::Statistic& s : graph.statistics) {
    found[graph.values[s.value].name] = graph.values[s.value].shape;
  }
  // ResNetForImageClassification(ResNetConfig(embedding_size=4, hidden_sizes=[16, 32],
  //     depths=[1, 2], num_labels=5)).state_dict()
  std::map<std::string, Shape> expected = {{"classifier.1.weight", {5, 32}},
                                           {"classifier.1.bias", {5}}};
  const auto layer = [&](const std::string& name, const Shape& weight) {
    expected[name + ".convolution.weight"] = weight;
    for (const char* field : {"weight", "bias", "running_mean", "running_var"}) {
      expected[name + ".normalization." + field] = {weight[0]};
    }
    expected[name + ".normalization.num_batches_tracked"] = {};
  };
  layer("resnet.embedder.embedder", {4, 3, 7, 7});
  const auto bottleneck = [&](const std::string& name, int64_t in, int64_t inner) {
    layer(name + ".layer.0", {inner, in, 1, 1});
    layer(name + ".layer.1", {inner, inner, 3, 3});
    layer(name + ".layer.2", {4 * inner, inner, 1, 1});
  };
  layer("resnet.encoder.stages.0.layers.0.shortcut", {16, 4, 1, 1});
  bottleneck("resnet.encoder.stages.0.layers.0", 4, 4);
  layer("resnet.encoder.stages.1.layers.0.shortcut", {32, 16, 1, 1});
  bottleneck("resnet.encoder.stages.1.layers.0", 16, 8);
  bottleneck("resnet.encoder.stages.1.layers.1", 32, 8);
  EXPECT_EQ(found, expected);
}

TEST(ResNet, GradientsAreThoseOfTheLoss) {
  for (bool bottleneck : {true, false}) {
    const Graph graph = BuildResnet(Tiny(bottleneck), {.batch = 3});
    EXPECT_THAT(
        GradientErrors(
            graph, {.vocabulary = 5, .elements_per_parameter = 3, .tolerance = 1e-6, .step = 1e-7}),
        IsEmpty());
  }
}

TEST(ResNet, EvaluationHasTheSameParametersAndMovesNothing) {
  const Graph train = BuildResnet(Tiny(true), {.batch = 2});
  const Graph evaluate = BuildResnet(Tiny(true), {.mode = Mode::kEvaluation, .batch = 2});
  ASSERT_EQ(evaluate.parameters.size(), train.parameters.size());
  ASSERT_EQ(evaluate.statistics.size(), train.statistics.size());
  for (const graph::Op& op : evaluate.ops) {
    EXPECT_NE(op.kind, OpKind::kBatchNormSums);
    for (const graph::Output& output : op.outputs) {
      EXPECT_NE(evaluate.values[output.value].kind, graph::ValueKind::kStatistic);
    }
    EXPECT_EQ(op.attributes.label_smoothing, 0);
  }
}

TEST(ResNet, TheLastNormsMayStartAtZero) {
  v1::ModelSpec model = Tiny(true);
  model.mutable_resnet()->set_zero_init_residual(true);
  const Graph graph = BuildResnet(model, {.batch = 2});
  for (const graph::Parameter& p : graph.parameters) {
    const std::string& name = graph.values[p.value].name;
    if (!name.ends_with("normalization.weight")) continue;
    EXPECT_EQ(p.initializer == graph::Initializer::kZeros,
              name.find(".layer.2.") != std::string::npos)
        << name;
  }
}

TEST(ResNet, RefusesWhatDoesNotFit) {
  v1::ModelSpec model = Tiny(true);
  EXPECT_THAT(BuildModel(model, {.mode = Mode::kGeneration, .batch = 1}).status().message(),
              HasSubstr("generates no text"));
  EXPECT_THAT(BuildModel(model, {.batch = 1, .sequence = 4}).status().message(),
              HasSubstr("data.sequence_length"));
  model.mutable_resnet()->set_image_size(1);
  const absl::Status status = BuildModel(model, {.batch = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("two pixels"));
}

}  // namespace
}  // namespace milepost::models
