#include "engine/models/bert.h"

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

v1::BertSpec TinyBert() {
  v1::BertSpec spec;
  spec.set_layers(2);
  spec.set_width(8);
  spec.set_heads(2);
  spec.set_hidden(12);
  spec.set_context(7);
  spec.set_vocabulary(11);
  spec.set_segments(3);
  return spec;
}

v1::ModelSpec Model(const v1::BertSpec& bert) {
  v1::JobSpec spec;
  *spec.mutable_model()->mutable_bert() = bert;
  NormalizeJobSpec(&spec);
  return spec.model();
}

Graph Build(const v1::BertSpec& bert, const ModelOptions& options) {
  absl::StatusOr<Graph> graph = BuildModel(Model(bert), options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::map<std::string, Shape> Parameters(const Graph& graph) {
  std::map<std::string, Shape> found;
  for (const graph::Parameter& parameter : graph.parameters) {
    const graph::Value& value = graph.values[parameter.value];
    found[value.name] = value.shape;
    EXPECT_EQ(parameter.decay, value.shape.size() == 2) << value.name;
  }
  return found;
}

// BertForMaskedLM(BertConfig(...)).named_parameters().
std::map<std::string, Shape> HuggingFaces() {
  std::map<std::string, Shape> expected = {{"bert.embeddings.word_embeddings.weight", {11, 8}},
                                           {"bert.embeddings.position_embeddings.weight", {7, 8}},
                                           {"bert.embeddings.token_type_embeddings.weight", {3, 8}},
                                           {"bert.embeddings.LayerNorm.weight", {8}},
                                           {"bert.embeddings.LayerNorm.bias", {8}},
                                           {"cls.predictions.bias", {11}},
                                           {"cls.predictions.transform.dense.weight", {8, 8}},
                                           {"cls.predictions.transform.dense.bias", {8}},
                                           {"cls.predictions.transform.LayerNorm.weight", {8}},
                                           {"cls.predictions.transform.LayerNorm.bias", {8}}};
  for (const char* layer : {"bert.encoder.layer.0.", "bert.encoder.layer.1."}) {
    const auto dense = [&](const std::string& name, int64_t out, int64_t in) {
      expected[layer + name + ".weight"] = {out, in};
      expected[layer + name + ".bias"] = {out};
    };
    for (const char* name : {"query", "key", "value"}) {
      dense(std::string("attention.self.") + name, 8, 8);
    }
    dense("attention.output.dense", 8, 8);
    dense("intermediate.dense", 12, 8);
    dense("output.dense", 8, 12);
    for (const char* norm : {"attention.output.LayerNorm", "output.LayerNorm"}) {
      expected[std::string(layer) + norm + ".weight"] = {8};
      expected[std::string(layer) + norm + ".bias"] = {8};
    }
  }
  return expected;
}

TEST(Bert, HasHuggingFacesParameters) {
  EXPECT_EQ(Parameters(Build(TinyBert(), {.sequence = 7})), HuggingFaces());
}

// DistilBertForMaskedLM(DistilBertConfig(...)).named_parameters().
std::map<std::string, Shape> HuggingFacesDistilBert() {
  std::map<std::string, Shape> expected;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    expected[name + ".weight"] = in == 0 ? Shape{out} : Shape{out, in};
    expected[name + ".bias"] = {out};
  };
  expected["distilbert.embeddings.word_embeddings.weight"] = {11, 8};
  expected["distilbert.embeddings.position_embeddings.weight"] = {7, 8};
  linear("distilbert.embeddings.LayerNorm", 8, 0);
  for (const std::string layer : {"0.", "1."}) {
    const std::string prefix = "distilbert.transformer.layer." + layer;
    for (const char* name : {"q_lin", "k_lin", "v_lin", "out_lin"}) {
      linear(prefix + "attention." + name, 8, 8);
    }
    linear(prefix + "sa_layer_norm", 8, 0);
    linear(prefix + "ffn.lin1", 12, 8);
    linear(prefix + "ffn.lin2", 8, 12);
    linear(prefix + "output_layer_norm", 8, 0);
  }
  linear("vocab_transform", 8, 8);
  linear("vocab_layer_norm", 8, 0);
  expected["vocab_projector.bias"] = {11};
  return expected;
}

TEST(Bert, WithoutSegmentsHasDistilBertsParameters) {
  v1::BertSpec spec = TinyBert();
  spec.set_segments(0);
  EXPECT_EQ(Parameters(Build(spec, {.sequence = 7})), HuggingFacesDistilBert());
}

TEST(Bert, GradientsAreThoseOfFiniteDifferences) {
  for (const double dropout : {0.0, 0.2}) {
    for (const int64_t segments : {3, 0}) {
      v1::BertSpec spec = TinyBert();
      spec.set_dropout(dropout);
      spec.set_segments(segments);
      ModelOptions options{.batch = 2, .sequence = 6, .lm_head_chunk_rows = 5};
      options.documents = dropout > 0;  // all zero: one document, one segment
      options.segments = dropout > 0 && segments > 0;
      EXPECT_THAT(
          graph::GradientErrors(Build(spec, options),
                                {.vocabulary = 11, .elements_per_parameter = 4, .micro_steps = 2}),
          IsEmpty());
    }
  }
}

TEST(Bert, EveryModeHasTheSameParameters) {
  const Graph training = Build(TinyBert(), {.mode = Mode::kTraining, .batch = 2, .sequence = 5});
  for (Mode mode : {Mode::kEvaluation, Mode::kGeneration}) {
    const Graph other = Build(TinyBert(), {.mode = mode, .batch = 2, .sequence = 5});
    ASSERT_EQ(other.parameters.size(), training.parameters.size());
    for (size_t i = 0; i < other.parameters.size(); ++i) {
      EXPECT_EQ(other.values[other.parameters[i].value].name,
                training.values[training.parameters[i].value].name);
    }
  }
}

// Every position sees every other one: a change of the last token reaches the first one's logits.
TEST(Bert, SeesBothWaysWithinItsDocument) {
  ModelOptions options{.mode = Mode::kGeneration, .sequence = 6};
  options.documents = true;
  const Graph graph = Build(TinyBert(), options);
  graph::ReferenceInterpreter reference(graph);
  for (const graph::Parameter& parameter : graph.parameters) {
    std::vector<double>& values = reference.values(parameter.value);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = graph::TestNumber(i + 1000 * parameter.value);
    }
  }
  const auto logits = [&](int32_t last, std::vector<int32_t> documents) {
    reference.integers(graph.Input("tokens")) = {1, 2, 3, 4, 5, last};
    reference.integers(graph.Input("documents")) = std::move(documents);
    reference.integers(graph.Input("positions")) = {0, 1, 2, 3, 4, 5};
    reference.Run({.position = 0});
    return reference.values(graph.logits);
  };
  const std::vector<int32_t> one(6, 0);
  const std::vector<int32_t> two = {0, 0, 0, 0, 1, 1};
  EXPECT_NE(logits(6, one), logits(7, one));
  EXPECT_EQ(logits(6, two), logits(7, two));
}

TEST(Bert, NamesTheFieldOfASizeThatDoesNotFit) {
  const auto message = [](auto change, int64_t sequence = 5) {
    v1::BertSpec spec = TinyBert();
    change(spec);
    return std::string(
        BuildModel(Model(spec), {.batch = 1, .sequence = sequence}).status().message());
  };
  EXPECT_THAT(message([](auto& s) { s.set_heads(3); }), HasSubstr("model.bert.heads"));
  EXPECT_THAT(message([](auto& s) { s.set_layers(0); }), HasSubstr("model.bert.layers"));
  EXPECT_THAT(message([](auto&) {}, 8), HasSubstr("model.bert.context"));
}

}  // namespace
}  // namespace milepost::models
