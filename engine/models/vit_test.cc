#include "engine/models/vit.h"

#include <map>
#include <string>

#include "common/spec/validate.h"
#include "engine/models/model.h"
#include "engine/ops/reference/gradient_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Graph;
using graph::Shape;
using testing::HasSubstr;
using testing::IsEmpty;

v1::VitSpec TinyVit() {
  v1::VitSpec spec;
  spec.set_layers(2);
  spec.set_width(8);
  spec.set_heads(2);
  spec.set_hidden(12);
  spec.set_classes(5);
  spec.set_image_size(6);
  spec.set_patch_size(3);
  spec.set_label_smoothing(0.1);
  return spec;
}

v1::ModelSpec VitModel(const v1::VitSpec& vit) {
  v1::JobSpec spec;
  *spec.mutable_model()->mutable_vit() = vit;
  NormalizeJobSpec(&spec);
  return spec.model();
}

Graph BuildTinyVit(const v1::VitSpec& vit, const ModelOptions& options) {
  absl::StatusOr<Graph> graph = BuildModel(VitModel(vit), options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

// What ViTForImageClassification(ViTConfig(...)).save_pretrained writes.
std::map<std::string, Shape> HuggingFacesVit() {
  std::map<std::string, Shape> expected = {
      {"vit.embeddings.cls_token", {1, 1, 8}},
      {"vit.embeddings.position_embeddings", {1, 5, 8}},
      {"vit.embeddings.patch_embeddings.projection.weight", {8, 3, 3, 3}},
      {"vit.embeddings.patch_embeddings.projection.bias", {8}}};
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    expected[name + ".weight"] = in == 0 ? Shape{out} : Shape{out, in};
    expected[name + ".bias"] = {out};
  };
  for (const std::string layer : {"vit.encoder.layer.0.", "vit.encoder.layer.1."}) {
    for (const char* name : {"query", "key", "value"}) {
      linear(layer + "attention.attention." + name, 8, 8);
    }
    linear(layer + "attention.output.dense", 8, 8);
    linear(layer + "intermediate.dense", 12, 8);
    linear(layer + "output.dense", 8, 12);
    linear(layer + "layernorm_before", 8, 0);
    linear(layer + "layernorm_after", 8, 0);
  }
  linear("vit.layernorm", 8, 0);
  linear("classifier", 5, 8);
  return expected;
}

TEST(Vit, HasHuggingFacesParameters) {
  const Graph graph = BuildTinyVit(TinyVit(), {.batch = 2});
  std::map<std::string, Shape> found;
  for (const graph::Parameter& p : graph.parameters) {
    found[graph.values[p.value].name] = graph.values[p.value].shape;
  }
  EXPECT_EQ(found, HuggingFacesVit());
}

// sum(p.numel() for p in ViTForImageClassification(ViTConfig(num_labels=1000)).parameters()).
TEST(Vit, BaseHas86Million) {
  v1::VitSpec base;
  base.set_layers(12);
  base.set_width(768);
  base.set_heads(12);
  base.set_classes(1000);
  int64_t found = 0;
  const Graph graph = BuildTinyVit(base, {});
  for (const graph::Parameter& p : graph.parameters) {
    found += graph::Elements(graph.values[p.value].shape);
  }
  EXPECT_EQ(found, 86567656);
  EXPECT_EQ(graph.blocks.size(), 14);
}

TEST(Vit, GradientsAreThoseOfFiniteDifferences) {
  for (const double dropout : {0.0, 0.2}) {
    v1::VitSpec spec = TinyVit();
    spec.set_dropout(dropout);
    EXPECT_THAT(
        graph::GradientErrors(BuildTinyVit(spec, {.batch = 3}),
                              {.vocabulary = 5, .elements_per_parameter = 4, .micro_steps = 2}),
        IsEmpty());
  }
}

TEST(Vit, EvaluationHasTheSameParametersAndNoSmoothing) {
  const Graph training = BuildTinyVit(TinyVit(), {.batch = 2});
  const Graph evaluation = BuildTinyVit(TinyVit(), {.mode = Mode::kEvaluation, .batch = 2});
  ASSERT_EQ(evaluation.parameters.size(), training.parameters.size());
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    EXPECT_EQ(evaluation.values[evaluation.parameters[i].value].name,
              training.values[training.parameters[i].value].name);
  }
  for (const graph::Op& op : evaluation.ops) EXPECT_EQ(op.attributes.label_smoothing, 0);
}

TEST(Vit, NamesTheFieldOfASizeThatDoesNotFit) {
  const auto message = [](auto change, const ModelOptions& options = {}) {
    v1::VitSpec spec = TinyVit();
    change(spec);
    return std::string(BuildModel(VitModel(spec), options).status().message());
  };
  EXPECT_THAT(message([](auto& s) { s.set_heads(3); }), HasSubstr("model.vit.heads"));
  EXPECT_THAT(message([](auto& s) { s.set_layers(0); }), HasSubstr("model.vit.layers"));
  EXPECT_THAT(message([](auto& s) { s.set_patch_size(4); }), HasSubstr("model.vit.patch_size"));
  EXPECT_THAT(message([](auto&) {}, {.sequence = 2}), HasSubstr("data.sequence_length"));
  EXPECT_THAT(message([](auto&) {}, {.mode = Mode::kGeneration}), HasSubstr("generates no text"));
}

}  // namespace
}  // namespace milepost::models
