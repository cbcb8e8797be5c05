#include "engine/models/gpt2.h"

#include <cmath>
#include <map>
#include <string>

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

v1::ModelSpec Model(int64_t layers, int64_t width, int64_t heads, int64_t context,
                    int64_t vocabulary, double dropout = 0) {
  v1::ModelSpec model;
  v1::Gpt2Spec& gpt2 = *model.mutable_gpt2();
  gpt2.set_layers(layers);
  gpt2.set_width(width);
  gpt2.set_heads(heads);
  gpt2.set_context(context);
  gpt2.set_vocabulary(vocabulary);
  gpt2.set_dropout(dropout);
  return model;
}

Graph Build(const v1::ModelSpec& model, const ModelOptions& options) {
  absl::StatusOr<Graph> graph = BuildModel(model, options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(Gpt2, HasHuggingFacesParameters) {
  const Graph graph = Build(Model(2, 32, 4, 16, 50), {.batch = 1, .sequence = 16});
  // GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_positions=16, vocab_size=50)).state_dict()
  const std::map<std::string, Shape> layer = {{"ln_1.weight", {32}},
                                              {"ln_1.bias", {32}},
                                              {"attn.c_attn.weight", {32, 96}},
                                              {"attn.c_attn.bias", {96}},
                                              {"attn.c_proj.weight", {32, 32}},
                                              {"attn.c_proj.bias", {32}},
                                              {"ln_2.weight", {32}},
                                              {"ln_2.bias", {32}},
                                              {"mlp.c_fc.weight", {32, 128}},
                                              {"mlp.c_fc.bias", {128}},
                                              {"mlp.c_proj.weight", {128, 32}},
                                              {"mlp.c_proj.bias", {32}}};
  std::map<std::string, Shape> expected = {{"transformer.wte.weight", {50, 32}},
                                           {"transformer.wpe.weight", {16, 32}},
                                           {"transformer.ln_f.weight", {32}},
                                           {"transformer.ln_f.bias", {32}}};
  for (const char* h : {"transformer.h.0.", "transformer.h.1."}) {
    for (const auto& [name, shape] : layer) expected[h + name] = shape;
  }
  std::map<std::string, Shape> found;
  for (const graph::Parameter& parameter : graph.parameters) {
    const graph::Value& value = graph.values[parameter.value];
    found[value.name] = value.shape;
    EXPECT_EQ(parameter.decay, value.shape.size() == 2) << value.name;
  }
  EXPECT_EQ(found, expected);
}

TEST(Gpt2, InitialisesAsGpt2Does) {
  const Graph graph = Build(Model(8, 32, 4, 16, 50), {.batch = 1, .sequence = 16});
  for (const graph::Parameter& parameter : graph.parameters) {
    const std::string& name = graph.values[parameter.value].name;
    if (name.ends_with(".bias")) {
      EXPECT_EQ(parameter.initializer, graph::Initializer::kZeros) << name;
    } else if (name.find("ln_") != std::string::npos) {
      EXPECT_EQ(parameter.initializer, graph::Initializer::kOnes) << name;
    } else {
      const bool residual = name.ends_with("c_proj.weight");
      EXPECT_EQ(parameter.initializer, graph::Initializer::kNormal) << name;
      EXPECT_DOUBLE_EQ(parameter.stddev, residual ? 0.02 / 4 : 0.02) << name;
    }
  }
}

TEST(Gpt2, EveryModeHasTheSameParameters) {
  const v1::ModelSpec model = Model(2, 32, 4, 16, 50, 0.1);
  const Graph training = Build(model, {.mode = Mode::kTraining, .batch = 2, .sequence = 8});
  for (Mode mode : {Mode::kEvaluation, Mode::kGeneration}) {
    const Graph other = Build(model, {.mode = mode, .batch = 1, .sequence = 16});
    ASSERT_EQ(other.parameters.size(), training.parameters.size());
    EXPECT_EQ(other.blocks, training.blocks);
    for (size_t i = 0; i < training.parameters.size(); ++i) {
      const graph::Value& a = training.values[training.parameters[i].value];
      const graph::Value& b = other.values[other.parameters[i].value];
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.block, b.block);
    }
    for (const graph::Op& op : other.ops) EXPECT_EQ(op.attributes.dropout, 0);
  }
}

TEST(Gpt2, GradientsAreThoseOfFiniteDifferences) {
  for (double dropout : {0.0, 0.2}) {
    const Graph graph = Build(Model(2, 8, 2, 7, 11, dropout), {.batch = 2, .sequence = 6});
    EXPECT_THAT(graph::GradientErrors(
                    graph, {.vocabulary = 11, .elements_per_parameter = 5, .micro_steps = 2}),
                IsEmpty());
  }
}

TEST(Gpt2, InitialLossIsThatOfAUniformGuess) {
  const int64_t vocabulary = 50;
  const Graph graph = Build(Model(2, 32, 4, 16, vocabulary),
                            {.mode = Mode::kEvaluation, .batch = 2, .sequence = 16});
  graph::ReferenceInterpreter reference(graph);
  for (const graph::Parameter& parameter : graph.parameters) {
    auto& values = reference.values(parameter.value);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = parameter.initializer == graph::Initializer::kOnes
                      ? 1
                      : parameter.stddev * graph::TestNumber(i) * std::sqrt(3.0);
    }
  }
  for (size_t i = 0; i < 32; ++i) {
    reference.integers(graph.Input("tokens"))[i] = static_cast<int32_t>(i * 7 % vocabulary);
    reference.integers(graph.Input("targets"))[i] = static_cast<int32_t>(i * 11 % vocabulary);
  }
  reference.Run({});
  EXPECT_NEAR(reference.values(graph.losses[0].sums)[0] / 32, std::log(vocabulary), 0.1);
}

TEST(Gpt2, GenerationGivesTheLogitsOfOnePosition) {
  const v1::ModelSpec model = Model(1, 8, 2, 6, 11);
  const Graph graph = Build(model, {.mode = Mode::kGeneration, .batch = 1, .sequence = 6});
  graph::ReferenceInterpreter reference(graph);
  for (const graph::Parameter& parameter : graph.parameters) {
    auto& values = reference.values(parameter.value);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = graph::TestNumber(i + 100 * parameter.value);
    }
  }
  auto& tokens = reference.integers(graph.Input("tokens"));
  tokens = {1, 2, 3, 0, 0, 0};
  reference.Run({.position = 2});
  const std::vector<double> logits = reference.values(graph.logits);
  tokens = {1, 2, 3, 9, 8, 7};  // what follows the position does not matter: causal
  reference.Run({.position = 2});
  EXPECT_EQ(reference.values(graph.logits), logits);
  tokens = {1, 5, 3, 9, 8, 7};
  reference.Run({.position = 2});
  EXPECT_NE(reference.values(graph.logits), logits);
}

TEST(Gpt2, NamesTheFieldThatDoesNotFit) {
  const auto error = [](const v1::ModelSpec& model) {
    return std::string(BuildModel(model, {.sequence = 16}).status().message());
  };
  EXPECT_THAT(error(Model(2, 32, 5, 16, 50)), HasSubstr("model.gpt2.heads"));
  EXPECT_THAT(error(Model(0, 32, 4, 16, 50)), HasSubstr("model.gpt2.layers"));
  EXPECT_THAT(error(Model(2, 32, 4, 15, 50)), HasSubstr("model.gpt2.context"));
  EXPECT_THAT(error(v1::ModelSpec()), HasSubstr("no family"));
}

}  // namespace
}  // namespace milepost::models
