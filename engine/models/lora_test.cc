#include "engine/models/lora.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"
#include "engine/models/model.h"
#include "engine/models/peft.h"
#include "engine/ops/reference/gradient_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Graph;
using graph::OpKind;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kVocabulary = 11;

v1::ModelSpec Llama() {
  v1::ModelSpec model;
  v1::LlamaSpec& llama = *model.mutable_llama();
  llama.set_layers(2);
  llama.set_width(16);
  llama.set_heads(2);
  llama.set_kv_heads(1);
  llama.set_head_dim(8);
  llama.set_hidden(12);
  llama.set_context(8);
  llama.set_vocabulary(kVocabulary);
  llama.set_rope_theta(10000);
  llama.set_norm_epsilon(1e-5);
  model.mutable_lora()->set_rank(3);
  return model;
}

v1::ModelSpec Olmo2() {
  v1::ModelSpec model = Llama();
  model.mutable_llama()->set_wide_qk_norm(true);
  model.mutable_llama()->set_pre_norms(false);
  model.mutable_llama()->set_post_norms(true);
  return model;
}

v1::ModelSpec Gpt2() {
  v1::ModelSpec model;
  v1::Gpt2Spec& gpt2 = *model.mutable_gpt2();
  gpt2.set_layers(1);
  gpt2.set_width(16);
  gpt2.set_heads(2);
  gpt2.set_context(8);
  gpt2.set_vocabulary(kVocabulary);
  model.mutable_lora()->set_rank(2);
  return model;
}

v1::ModelSpec Bert() {
  v1::ModelSpec model;
  v1::BertSpec& bert = *model.mutable_bert();
  bert.set_layers(1);
  bert.set_width(16);
  bert.set_heads(2);
  bert.set_hidden(24);
  bert.set_context(8);
  bert.set_segments(2);
  bert.set_vocabulary(kVocabulary);
  bert.set_norm_epsilon(1e-12);
  model.mutable_lora()->set_rank(2);
  return model;
}

v1::ModelSpec Vit() {
  v1::JobSpec spec;
  v1::VitSpec& vit = *spec.mutable_model()->mutable_vit();
  vit.set_layers(1);
  vit.set_width(16);
  vit.set_heads(2);
  vit.set_hidden(24);
  vit.set_classes(kVocabulary);
  vit.set_image_size(8);
  vit.set_patch_size(4);
  spec.mutable_model()->mutable_lora()->set_rank(2);
  NormalizeJobSpec(&spec);
  return spec.model();
}

Graph Build(const v1::ModelSpec& model, Mode mode = Mode::kTraining) {
  absl::StatusOr<Graph> graph =
      BuildModel(model, {.mode = mode, .batch = 2, .sequence = model.has_vit() ? 1 : 6});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::string Refusal(const v1::ModelSpec& model) {
  const absl::Status status = BuildModel(model, {.batch = 2, .sequence = 6}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

std::set<std::string> Adapted(const Graph& graph) {
  std::set<std::string> layers;
  for (const graph::Parameter& p : graph.parameters) {
    const absl::string_view layer = AdaptedLayer(graph.values[p.value].name);
    if (!layer.empty()) layers.insert(std::string(layer));
  }
  return layers;
}

TEST(LoraLayers, GradientsAreThoseOfFiniteDifferences) {
  struct Case {
    v1::ModelSpec model;
    std::vector<const char*> targets;
  };
  for (Case& c : std::vector<Case>{{Llama(), {"q_proj", "v_proj", "down_proj", "gate_proj"}},
                                   {Olmo2(), {"q_proj", "v_proj", "down_proj", "gate_proj"}},
                                   {Gpt2(), {"c_fc", "attn.c_proj"}},
                                   {Bert(), {"value", "*.dense"}},
                                   {Vit(), {"value", "*.dense"}}}) {
    v1::LoraSpec& lora = *c.model.mutable_lora();
    const auto errors = [&] {
      return graph::GradientErrors(Build(c.model),
                                   {.vocabulary = kVocabulary, .elements_per_parameter = 6});
    };
    EXPECT_THAT(errors(), IsEmpty());
    lora.set_alpha(5);
    lora.set_dropout(0.2);
    for (const char* target : c.targets) lora.add_targets(target);
    EXPECT_THAT(errors(), IsEmpty());
  }
}

// The norms of magnitudes are constants to the backward: they are those of parameters that nothing
// else reads. All others but these are checked.
Graph WithConstantNorms(Graph graph) {
  for (graph::Parameter& p : graph.parameters) p.base = false;
  for (graph::Op& op : graph.ops) {
    if (op.kind != OpKind::kDoraNorms) continue;
    for (graph::ValueId& input : op.inputs) {
      graph::Value copy = graph.values[input];
      copy.name = absl::StrCat("constant ", copy.name);
      input = static_cast<graph::ValueId>(graph.values.size());
      graph.values.push_back(std::move(copy));
      graph.parameters.push_back(
          {.value = input, .initializer = graph::Initializer::kNormal, .base = true});
    }
  }
  return graph;
}

// Of all layers; and where of the parts of a layer one has no adapter.
TEST(LoraLayers, GradientsBesideMagnitudesAreThoseOfFiniteDifferences) {
  struct Case {
    v1::ModelSpec model;
    std::vector<const char*> targets;
  };
  for (Case& c : std::vector<Case>{{Llama(), {"k_proj", "v_proj", "up_proj"}},
                                   {Gpt2(), {"c_fc"}},
                                   {Bert(), {"value", "query"}}}) {
    v1::LoraSpec& lora = *c.model.mutable_lora();
    lora.set_dora(true);
    lora.set_alpha(5);
    if (c.model.has_llama()) c.model.mutable_llama()->set_qkv_bias(true);
    for (const bool some : {false, true}) {
      for (const char* target : c.targets) {
        if (some) lora.add_targets(target);
      }
      EXPECT_THAT(graph::GradientErrors(
                      WithConstantNorms(Build(c.model)),
                      {.vocabulary = kVocabulary, .elements_per_parameter = 6, .skips_base = true}),
                  IsEmpty());
    }
  }
}

TEST(LoraLayers, MagnitudesAreOfEveryLayerThatIsAdapted) {
  v1::ModelSpec model = Llama();
  model.mutable_lora()->set_dora(true);
  model.mutable_lora()->add_targets("q_proj");
  int changes = 0;
  const Graph graph = Build(model);
  for (const graph::Parameter& p : graph.parameters) {
    const graph::Value& value = graph.values[p.value];
    if (!IsMagnitudeChange(value.name)) continue;
    ++changes;
    EXPECT_EQ(value.name, MagnitudeChangeName(AdaptedLayer(value.name)));
    EXPECT_EQ(value.shape, (graph::Shape{16}));
    EXPECT_EQ(p.initializer, graph::Initializer::kZeros);
    EXPECT_FALSE(p.base || p.decay);
  }
  EXPECT_EQ(changes, 2);
}

TEST(LoraLayers, EveryLayerOfTheBlocksIsATarget) {
  EXPECT_EQ(Adapted(Build(Llama())).size(), 14u);
  EXPECT_THAT(Adapted(Build(Gpt2())),
              testing::ElementsAre("transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj",
                                   "transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_proj"));
  EXPECT_EQ(Adapted(Build(Bert())).size(), 6u);
  EXPECT_EQ(Adapted(Build(Vit())).size(), 6u);  // neither patches' layer nor the classifier
}

TEST(LoraLayers, WhatTheyAdaptIsNotTrained) {
  v1::ModelSpec model = Llama();
  model.mutable_lora()->add_targets("layers.1.self_attn.q_proj");
  model.mutable_lora()->add_also_train("norm.weight");
  v1::TaskHeadSpec& head = *model.add_heads();
  head.set_name("tag");
  head.set_classes(3);
  for (const Mode mode : {Mode::kTraining, Mode::kEvaluation, Mode::kGeneration}) {
    const Graph graph = Build(model, mode);
    std::set<std::string> trained;
    for (const graph::Parameter& p : graph.parameters) {
      if (!p.base) trained.insert(graph.values[p.value].name);
    }
    EXPECT_THAT(trained, testing::ElementsAre("heads.tag.bias", "heads.tag.weight",
                                              "model.layers.1.self_attn.q_proj.lora_A.weight",
                                              "model.layers.1.self_attn.q_proj.lora_B.weight",
                                              "model.norm.weight"));
  }
  model.clear_lora();
  for (const graph::Parameter& p : Build(model).parameters) EXPECT_FALSE(p.base);
}

// As PEFT's modules_to_save.
TEST(LoraLayers, WhatIsTrainedInFullHasNoAdapters) {
  v1::ModelSpec model = Gpt2();
  model.mutable_lora()->add_also_train("mlp.*");
  EXPECT_THAT(Adapted(Build(model)),
              testing::ElementsAre("transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj"));
}

TEST(PeftConfig, NamesMagnitudesAsPeftDoes) {
  EXPECT_EQ(PeftName("model.norm.weight"), "base_model.model.model.norm.weight");
  EXPECT_EQ(PeftName(MagnitudeChangeName("model.layers.1.mlp.up_proj")),
            "base_model.model.model.layers.1.mlp.up_proj.lora_magnitude_vector");
  v1::ModelSpec model = Llama();
  EXPECT_THAT(*PeftConfig(model, "/base"), HasSubstr("\"use_dora\": false"));
  model.mutable_lora()->set_dora(true);
  EXPECT_THAT(*PeftConfig(model, "/base"), HasSubstr("\"use_dora\": true"));
}

// transformers 5's: [n for n, _ in ViTForImageClassification(config).named_modules()].
TEST(PeftConfig, NamesAVitsLayersAsTransformersDoes) {
  v1::ModelSpec model = Vit();
  model.mutable_lora()->add_also_train("classifier.*");
  const std::string config = *PeftConfig(model, "/base");
  for (const char* layer : {"q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2", "classifier"}) {
    EXPECT_THAT(config, HasSubstr(absl::StrCat("\"", layer, "\"")));
  }
  EXPECT_THAT(config, HasSubstr("\"task_type\": null"));
  const std::string layer = "vit.encoder.layer.11.";
  EXPECT_EQ(PeftName(LoraUpName(layer + "attention.attention.query")),
            "base_model.model.vit.layers.11.attention.q_proj.lora_B.weight");
  EXPECT_EQ(PeftName(LoraUpName(layer + "attention.output.dense")),
            "base_model.model.vit.layers.11.attention.o_proj.lora_B.weight");
  EXPECT_EQ(PeftName(MagnitudeChangeName(layer + "output.dense")),
            "base_model.model.vit.layers.11.mlp.fc2.lora_magnitude_vector");
  EXPECT_EQ(PeftName(layer + "layernorm_after.weight"),
            "base_model.model.vit.layers.11.layernorm_after.weight");
  EXPECT_EQ(PeftName("classifier.weight"), "base_model.model.classifier.weight");
}

TEST(PeftConfig, HasNoPlaceForSomeOfWhatIsTrained) {
  const auto problem = [](const v1::ModelSpec& model) {
    return std::string(PeftConfig(model, "/base").status().message());
  };
  v1::ModelSpec model = Gpt2();
  EXPECT_EQ(problem(model), "");
  model.mutable_lora()->add_also_train("*.bias");
  EXPECT_THAT(problem(model), HasSubstr("attn.c_attn has adapters, and its bias is trained too"));
  model = Gpt2();
  model.mutable_lora()->add_also_train("wte.weight");
  EXPECT_THAT(problem(model), HasSubstr("transformer.wte is trained, and is the head too"));
  model = Llama();
  model.mutable_lora()->add_also_train("embed_tokens.weight");
  EXPECT_EQ(problem(model), "");
  model = Vit();
  model.mutable_lora()->add_also_train("cls_token");
  EXPECT_THAT(problem(model), HasSubstr("cls_token is trained, and is no layer's"));
}

TEST(LoraLayers, AdaptersStartAsTorchsLayersAndAtZero) {
  const Graph graph = Build(Llama());
  for (const graph::Parameter& p : graph.parameters) {
    const graph::Value& value = graph.values[p.value];
    if (AdaptedLayer(value.name).empty()) continue;
    const bool down = value.name.find(".lora_A.") != std::string::npos;
    EXPECT_EQ(p.initializer, down ? graph::Initializer::kUniform : graph::Initializer::kZeros);
    EXPECT_EQ(value.shape[down ? 0 : 1], 3) << value.name;
    // Uniform within 1 / sqrt(in).
    if (!down) continue;
    EXPECT_DOUBLE_EQ(p.stddev * std::sqrt(3.0), 1 / std::sqrt(value.shape[1]));
  }
}

// Which multiplies nothing at alpha = rank, and drops nothing but in training.
TEST(LoraLayers, OnlyWhatIsNeededIsComputed) {
  v1::ModelSpec model = Llama();
  model.mutable_lora()->set_dropout(0.5);
  const auto count = [](const Graph& graph, OpKind kind) {
    int ops = 0;
    for (const graph::Op& op : graph.ops) ops += op.kind == kind ? 1 : 0;
    return ops;
  };
  EXPECT_EQ(count(Build(model), OpKind::kScale), 0);
  EXPECT_EQ(count(Build(model), OpKind::kDropout), 8);
  EXPECT_EQ(count(Build(model), OpKind::kLora), 8);
  EXPECT_EQ(count(Build(model, Mode::kEvaluation), OpKind::kDropout), 0);
  model.mutable_lora()->set_alpha(6);
  EXPECT_EQ(count(Build(model), OpKind::kScale), 8);
}

TEST(LoraLayers, TheScaleIsAlphaOverTheRankOrItsRoot) {
  v1::LoraSpec lora;
  lora.set_rank(16);
  EXPECT_EQ(LoraScale(lora), 1);
  lora.set_alpha(32);
  EXPECT_EQ(LoraScale(lora), 2);
  lora.set_rank_stabilized(true);
  EXPECT_EQ(LoraScale(lora), 8);
}

TEST(LoraLayers, PatternsThatMatchNothingAreRefused) {
  v1::ModelSpec model = Llama();
  model.mutable_lora()->add_targets("q_proj");
  model.mutable_lora()->add_targets("w_proj");
  EXPECT_THAT(Refusal(model), HasSubstr("model.lora.targets[1]: 'w_proj' matches no layer; the "
                                        "nearest are model.layers.0.self_attn."));
  model.mutable_lora()->clear_targets();
  model.mutable_lora()->add_also_train("lm_heat.weight");
  EXPECT_THAT(Refusal(model), HasSubstr("model.lora.also_train[0]: 'lm_heat.weight' matches no "
                                        "parameter; the nearest are lm_head.weight"));
}

}  // namespace
}  // namespace milepost::models
