#include "engine/models/llama.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"
#include "engine/models/model.h"
#include "engine/ops/reference/gradient_check.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Graph;
using graph::Shape;
using testing::HasSubstr;
using testing::IsEmpty;

v1::LlamaSpec TinyLlama() {
  v1::LlamaSpec spec;
  spec.set_layers(2);
  spec.set_width(16);
  spec.set_heads(4);
  spec.set_kv_heads(2);
  spec.set_head_dim(8);
  spec.set_hidden(24);
  spec.set_context(7);
  spec.set_vocabulary(11);
  spec.set_rope_theta(100);
  spec.set_norm_epsilon(1e-5);
  return spec;
}

v1::ModelSpec Model(const v1::LlamaSpec& llama) {
  v1::JobSpec spec;
  *spec.mutable_model()->mutable_llama() = llama;
  NormalizeJobSpec(&spec);
  return spec.model();
}

Graph Build(const v1::LlamaSpec& llama, const ModelOptions& options) {
  absl::StatusOr<Graph> graph = BuildModel(Model(llama), options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::map<std::string, Shape> ShapesOf(const Graph& graph) {
  std::map<std::string, Shape> found;
  for (const graph::Parameter& parameter : graph.parameters) {
    const graph::Value& value = graph.values[parameter.value];
    found[value.name] = value.shape;
    EXPECT_EQ(parameter.decay, value.shape.size() == 2) << value.name;
  }
  return found;
}

// LlamaForCausalLM(LlamaConfig(...)).state_dict(); Qwen2's has the biases too, Qwen3's the norms.
std::map<std::string, Shape> HuggingFaces(bool tied, bool qkv_bias, bool qk_norm = false) {
  std::map<std::string, Shape> layer = {
      {"input_layernorm.weight", {16}},      {"self_attn.q_proj.weight", {32, 16}},
      {"self_attn.k_proj.weight", {16, 16}}, {"self_attn.v_proj.weight", {16, 16}},
      {"self_attn.o_proj.weight", {16, 32}}, {"post_attention_layernorm.weight", {16}},
      {"mlp.gate_proj.weight", {24, 16}},    {"mlp.up_proj.weight", {24, 16}},
      {"mlp.down_proj.weight", {16, 24}}};
  if (qkv_bias) {
    layer["self_attn.q_proj.bias"] = {32};
    layer["self_attn.k_proj.bias"] = {16};
    layer["self_attn.v_proj.bias"] = {16};
  }
  if (qk_norm) {
    layer["self_attn.q_norm.weight"] = {8};
    layer["self_attn.k_norm.weight"] = {8};
  }
  std::map<std::string, Shape> expected = {{"model.embed_tokens.weight", {11, 16}},
                                           {"model.norm.weight", {16}}};
  if (!tied) expected["lm_head.weight"] = {11, 16};
  for (const char* prefix : {"model.layers.0.", "model.layers.1."}) {
    for (const auto& [name, shape] : layer) expected[prefix + name] = shape;
  }
  return expected;
}

TEST(Llama, HasHuggingFacesParameters) {
  for (bool tied : {false, true}) {
    for (bool qkv_bias : {false, true}) {
      v1::LlamaSpec spec = TinyLlama();
      spec.set_tied(tied);
      spec.set_qkv_bias(qkv_bias);
      EXPECT_EQ(ShapesOf(Build(spec, {.sequence = 7})), HuggingFaces(tied, qkv_bias));
    }
  }
  v1::LlamaSpec qwen3 = TinyLlama();
  qwen3.set_qk_norm(true);
  EXPECT_EQ(ShapesOf(Build(qwen3, {.sequence = 7})), HuggingFaces(false, false, true));
}

v1::LlamaSpec TinyMixture(bool qwen3) {
  v1::LlamaSpec spec = TinyLlama();
  spec.set_qk_norm(qwen3);
  v1::ExpertsSpec* experts = spec.mutable_experts();
  experts->set_count(4);
  experts->set_per_token(2);
  experts->set_hidden(12);
  experts->set_normalize(!qwen3);
  experts->set_balance_loss(0);
  return spec;
}

// As transformers writes MixtralForCausalLM and Qwen3MoeForCausalLM into files.
TEST(Llama, ExpertsHaveMixtralsNamesOrThoseOfQwen3sMixtures) {
  for (const bool qwen3 : {false, true}) {
    std::map<std::string, Shape> expected = HuggingFaces(false, false, qwen3);
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      for (const char* one : {"gate_proj", "up_proj", "down_proj"}) {
        ASSERT_EQ(expected.erase(absl::StrCat(layer, "mlp.", one, ".weight")), 1U);
      }
      const std::string block = layer + (qwen3 ? "mlp." : "block_sparse_moe.");
      expected[block + "gate.weight"] = {4, 16};
      for (int e = 0; e < 4; ++e) {
        const std::string expert = absl::StrCat(block, "experts.", e, ".");
        expected[expert + (qwen3 ? "gate_proj.weight" : "w1.weight")] = {12, 16};
        expected[expert + (qwen3 ? "up_proj.weight" : "w3.weight")] = {12, 16};
        expected[expert + (qwen3 ? "down_proj.weight" : "w2.weight")] = {16, 12};
      }
    }
    EXPECT_EQ(ShapesOf(Build(TinyMixture(qwen3), {.sequence = 7})), expected);
  }
}

TEST(Llama, GradientsOfMixturesAreThoseOfFiniteDifferences) {
  for (const bool qwen3 : {false, true}) {
    EXPECT_THAT(
        graph::GradientErrors(Build(TinyMixture(qwen3), {.batch = 2, .sequence = 6}),
                              {.vocabulary = 11, .elements_per_parameter = 4, .micro_steps = 2}),
        IsEmpty());
  }
}

// Validation has the model's own loss alone.
TEST(Llama, OnlyTrainingBalancesExperts) {
  const auto balances = [](Mode mode, double balance_loss, double z_loss) {
    v1::LlamaSpec spec = TinyMixture(false);
    spec.mutable_experts()->set_balance_loss(balance_loss);
    spec.mutable_experts()->set_z_loss(z_loss);
    const Graph graph = Build(spec, {.mode = mode, .sequence = 7});
    return std::count_if(graph.ops.begin(), graph.ops.end(), [](const graph::Op& op) {
      return op.kind == graph::OpKind::kExpertBalance;
    });
  };
  EXPECT_EQ(balances(Mode::kTraining, 0.1, 0), 1);
  EXPECT_EQ(balances(Mode::kTraining, 0, 0.1), 1);
  EXPECT_EQ(balances(Mode::kTraining, 0, 0), 0);
  EXPECT_EQ(balances(Mode::kEvaluation, 0.1, 0.1), 0);
  EXPECT_EQ(balances(Mode::kGeneration, 0.1, 0.1), 0);
}

TEST(Llama, GradientsAreThoseOfFiniteDifferences) {
  for (int64_t kv_heads : {1, 2, 4}) {
    v1::LlamaSpec spec = TinyLlama();
    spec.set_kv_heads(kv_heads);
    spec.set_tied(kv_heads == 1);
    spec.set_qkv_bias(kv_heads == 4);
    spec.set_qk_norm(kv_heads != 4);
    if (kv_heads == 2) {
      spec.mutable_rope_scaling()->set_original_context(40);
      spec.mutable_rope_scaling()->set_factor(4);
    }
    EXPECT_THAT(
        graph::GradientErrors(Build(spec, {.batch = 2, .sequence = 6}),
                              {.vocabulary = 11, .elements_per_parameter = 4, .micro_steps = 2}),
        IsEmpty());
  }
}

v1::LlamaSpec TinyGemma3() {
  v1::LlamaSpec spec = TinyLlama();
  spec.set_layers(3);
  spec.set_tied(true);
  spec.set_qk_norm(true);
  spec.set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
  spec.set_norm_offset(true);
  spec.set_post_norms(true);
  spec.set_scale_embedding(true);
  spec.mutable_window()->set_positions(3);
  spec.mutable_window()->set_full_every(2);
  spec.mutable_window()->set_rope_theta(10);
  spec.mutable_rope_scaling()->set_type(v1::RopeScalingSpec::TYPE_LINEAR);
  spec.mutable_rope_scaling()->set_factor(8);
  return spec;
}

TEST(Llama, GradientsOfGemma3AreThoseOfFiniteDifferences) {
  EXPECT_THAT(
      graph::GradientErrors(Build(TinyGemma3(), {.batch = 2, .sequence = 6}),
                            {.vocabulary = 11, .elements_per_parameter = 4, .micro_steps = 2}),
      IsEmpty());
}

v1::LlamaSpec TinyOlmo2() {
  v1::LlamaSpec spec = TinyLlama();
  spec.set_wide_qk_norm(true);
  spec.set_pre_norms(false);
  spec.set_post_norms(true);
  return spec;
}

TEST(Llama, GradientsOfOlmo2AreThoseOfFiniteDifferences) {
  for (int64_t kv_heads : {1, 4}) {
    v1::LlamaSpec spec = TinyOlmo2();
    spec.set_kv_heads(kv_heads);
    EXPECT_THAT(
        graph::GradientErrors(Build(spec, {.batch = 2, .sequence = 6}),
                              {.vocabulary = 11, .elements_per_parameter = 4, .micro_steps = 2}),
        IsEmpty());
  }
}

TEST(Llama, Olmo2sNormsAreWhereTransformersHasThem) {
  std::map<std::string, Shape> expected = HuggingFaces(false, false);
  for (const char* prefix : {"model.layers.0.", "model.layers.1."}) {
    expected.erase(absl::StrCat(prefix, "input_layernorm.weight"));
    expected[absl::StrCat(prefix, "post_feedforward_layernorm.weight")] = {16};
    expected[absl::StrCat(prefix, "self_attn.q_norm.weight")] = {32};
    expected[absl::StrCat(prefix, "self_attn.k_norm.weight")] = {16};
  }
  EXPECT_EQ(ShapesOf(Build(TinyOlmo2(), {.sequence = 7})), expected);
}

// Each layer's attention, in order.
std::vector<int64_t> WindowsOf(const Graph& graph) {
  std::vector<int64_t> windows;
  for (const graph::Op& op : graph.ops) {
    const bool attends =
        op.kind == graph::OpKind::kAttention || op.kind == graph::OpKind::kCachedAttention;
    if (attends) windows.push_back(op.attributes.window);
  }
  return windows;
}

TEST(Llama, LayersHaveTheWindowButEverySoManyth) {
  v1::LlamaSpec spec = TinyGemma3();
  EXPECT_THAT(WindowsOf(Build(spec, {.sequence = 7})), testing::ElementsAre(3, 0, 3));
  const ModelOptions cached = {.mode = Mode::kGeneration, .sequence = 1, .cached_positions = 7};
  EXPECT_THAT(WindowsOf(Build(spec, cached)), testing::ElementsAre(3, 0, 3));
  spec.mutable_window()->clear_full_every();
  EXPECT_THAT(WindowsOf(Build(spec, {.sequence = 7})), testing::ElementsAre(3, 3, 3));
}

TEST(Llama, Gemma3sNormsAreWhereTransformersHasThem) {
  const std::map<std::string, Shape> shapes = ShapesOf(Build(TinyGemma3(), {.sequence = 7}));
  for (const char* name : {"input_layernorm", "post_attention_layernorm",
                           "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
    EXPECT_EQ(shapes.count(absl::StrCat("model.layers.2.", name, ".weight")), 1u) << name;
  }
  EXPECT_EQ(shapes.size(), 3u * 13 + 2);
  for (const graph::Parameter& parameter : Build(TinyGemma3(), {.sequence = 7}).parameters) {
    EXPECT_NE(parameter.initializer, graph::Initializer::kOnes);
  }
}

TEST(Llama, EveryModeHasTheSameParameters) {
  const Graph training = Build(TinyLlama(), {.mode = Mode::kTraining, .batch = 2, .sequence = 5});
  for (Mode mode : {Mode::kEvaluation, Mode::kGeneration}) {
    const Graph other = Build(TinyLlama(), {.mode = mode, .batch = 1, .sequence = 7});
    EXPECT_EQ(ShapesOf(other), ShapesOf(training));
    EXPECT_EQ(other.blocks, training.blocks);
  }
}

TEST(Llama, GenerationGivesTheLogitsOfOnePosition) {
  const Graph graph = Build(TinyLlama(), {.mode = Mode::kGeneration, .batch = 1, .sequence = 6});
  graph::ReferenceInterpreter reference(graph);
  for (const graph::Parameter& parameter : graph.parameters) {
    auto& values = reference.values(parameter.value);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = graph::TestNumber(i + 1000 * parameter.value);
    }
  }
  auto& tokens = reference.integers(graph.Input("tokens"));
  const auto logits = [&](const std::vector<int32_t>& ids) {
    tokens = ids;
    reference.Run({.position = 2});
    return reference.values(graph.logits);
  };
  EXPECT_EQ(logits({1, 2, 3, 0, 0, 0}), logits({1, 2, 3, 9, 8, 7}));  // causal
  EXPECT_NE(logits({1, 2, 3, 9, 8, 7}), logits({2, 1, 3, 9, 8, 7}));  // positions are seen
}

// Without it this would be another model, and nobody would know.
TEST(Llama, AFieldOfALaterVersionIsRefused) {
  v1::ModelSpec later = Model(TinyLlama());
  v1::LlamaSpec* llama = later.mutable_llama();
  llama->GetReflection()->MutableUnknownFields(llama)->AddVarint(1999, 1);
  EXPECT_EQ(BuildModel(later, {.sequence = 7}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Llama, NamesTheFieldThatDoesNotFit) {
  const auto error = [](v1::LlamaSpec spec, auto change) {
    change(spec);
    return std::string(BuildModel(Model(spec), {.sequence = 7}).status().message());
  };
  EXPECT_THAT(error(TinyLlama(), [](auto& s) { s.set_kv_heads(3); }),
              HasSubstr("model.llama.kv_heads"));
  EXPECT_THAT(error(TinyLlama(), [](auto& s) { s.set_hidden(0); }),
              HasSubstr("model.llama.hidden"));
  EXPECT_THAT(error(TinyLlama(), [](auto& s) { s.set_context(6); }),
              HasSubstr("model.llama.context"));
  EXPECT_THAT(error(TinyLlama(), [](auto& s) { s.set_pre_norms(false); }),
              HasSubstr("model.llama.pre_norms"));
  EXPECT_THAT(error(TinyMixture(true), [](auto& s) { s.mutable_experts()->set_per_token(5); }),
              HasSubstr("model.llama.experts.per_token: 5 is not in [1, 4]"));
  EXPECT_THAT(error(TinyMixture(true), [](auto& s) { s.mutable_experts()->set_hidden(0); }),
              HasSubstr("model.llama.experts.hidden"));
}

}  // namespace
}  // namespace milepost::models
