// Configs of models that a family has with a norm, a window, experts or a table more or less:
// OLMo 2 and 3, Mixtral, Qwen3's mixtures, DistilBERT.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "engine/models/hugging_face.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadBack(const std::string& config) {
  const auto model = ModelOfHfConfig(config);
  return model.ok() ? model->ShortDebugString() : std::string(model.status().message());
}

std::string Changed(absl::string_view config, absl::string_view from, absl::string_view to) {
  EXPECT_THAT(std::string(config), HasSubstr(std::string(from)));
  return ReadBack(absl::StrReplaceAll(config, {{from, to}}));
}

// allenai/OLMo-2-0425-1B's, in part.
constexpr char kOlmo2[] = R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16,
    "num_key_value_heads": 16, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false,
    "vocab_size": 100352})";

TEST(HuggingFaceRelatives, Olmo2IsALlama) {
  const auto model = ModelOfHfConfig(kOlmo2);
  ASSERT_TRUE(model.ok()) << model.status();
  const v1::LlamaSpec& llama = model->llama();
  EXPECT_TRUE(llama.wide_qk_norm() && llama.post_norms() && llama.has_pre_norms());
  EXPECT_FALSE(llama.pre_norms() || llama.qk_norm() || llama.has_window() || llama.tied());
  EXPECT_EQ(llama.head_dim(), 128);
  EXPECT_EQ(llama.norm_epsilon(), 1e-6);
  const std::string written = *HfConfig(*model, "bfloat16");
  EXPECT_THAT(written, HasSubstr("Olmo2ForCausalLM"));
  EXPECT_THAT(written, Not(HasSubstr("layer_types")));
  EXPECT_EQ(ReadBack(written), model->ShortDebugString());
  EXPECT_THAT(Changed(kOlmo2, "\"rms_norm_eps\": 1e-06,", ""), HasSubstr("norm_epsilon: 1e-05"));
  EXPECT_EQ(Changed(kOlmo2, "\"attention_bias\": false", "\"attention_bias\": true"),
            "attention_bias is true, this model family needs false");
  // transformers does not read it there.
  EXPECT_EQ(Changed(kOlmo2, "\"eos_token_id\": 100257", "\"sliding_window\": 16"),
            model->ShortDebugString());
}

TEST(HuggingFaceRelatives, OtherNormsAreOtherModels) {
  v1::ModelSpec model = *ModelOfHfConfig(kOlmo2);
  model.mutable_llama()->set_wide_qk_norm(false);
  EXPECT_THAT(std::string(HfConfig(model, "float32").status().message()),
              HasSubstr("no model with this choice"));
  model.mutable_llama()->set_post_norms(false);
  model.mutable_llama()->clear_pre_norms();
  EXPECT_THAT(std::string(CheckHfConfig(model, kOlmo2).message()),
              HasSubstr("model_type is \"olmo2\", which needs wide_qk_norm, post_norms, pre_norms: "
                        "false, and no window"));
}

// As transformers 4 writes it.
constexpr char kOlmo3[] = R"({"model_type": "olmo3", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "layer_types": ["sliding_attention", "sliding_attention",
    "sliding_attention", "full_attention"], "max_position_embeddings": 8192,
    "num_attention_heads": 32, "num_hidden_layers": 4, "num_key_value_heads": 32,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000, "sliding_window": 4096,
    "vocab_size": 100278})";

TEST(HuggingFaceRelatives, Olmo3HasWindows) {
  const auto model = ModelOfHfConfig(kOlmo3);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->llama().wide_qk_norm());
  EXPECT_EQ(model->llama().window().ShortDebugString(),
            "positions: 4096 full_every: 4 rope_theta: 500000");
  const std::string same = model->ShortDebugString();
  const std::string written = *HfConfig(*model, "bfloat16");
  EXPECT_THAT(written, HasSubstr("Olmo3ForCausalLM"));
  EXPECT_THAT(written, HasSubstr("\"sliding_attention\": {"));
  EXPECT_EQ(ReadBack(written), same);
  EXPECT_EQ(Changed(kOlmo3, "\"sliding_window\": 4096,", ""), same);
  EXPECT_EQ(Changed(kOlmo3, "\"rope_scaling\": null, \"rope_theta\": 500000,", ""), same);
  EXPECT_THAT(Changed(kOlmo3, "\"rope_scaling\": null",
                      R"("rope_scaling": {"rope_type": "yarn", "factor": 8.0})"),
              HasSubstr("rope_scaling.rope_type is \"yarn\", and not default"));
  // As transformers 5 reads it: that of the layers with a window stays.
  EXPECT_THAT(
      Changed(kOlmo3, "\"rope_theta\": 500000", "\"rope_theta\": 777"),
      testing::AllOf(HasSubstr("full_every: 4 rope_theta: 500000"), HasSubstr("rope_theta: 777")));
}

TEST(HuggingFaceRelatives, Olmo3sRotaryPositionsAreByKindOfLayer) {
  const std::string scaled = absl::StrReplaceAll(
      kOlmo3, {{"\"rope_scaling\": null, \"rope_theta\": 500000", R"("rope_parameters": {
        "full_attention": {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 2048},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}})"}});
  auto model = ModelOfHfConfig(scaled);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->llama().rope_theta(), 5000);
  EXPECT_EQ(model->llama().rope_scaling().original_context(), 2048);
  EXPECT_EQ(model->llama().window().rope_theta(), 100);
  EXPECT_EQ(ReadBack(*HfConfig(*model, "float32")), model->ShortDebugString());
  EXPECT_EQ(
      Changed(scaled, R"("rope_type": "default", "rope_theta": 100.0)",
              R"("rope_type": "linear", "factor": 2.0)"),
      "rope_scaling.rope_type is {\"sliding_attention\":\"linear\"}, and not default, linear or "
      "llama3, which are supported");
  for (const char* older : {R"("type": "linear")", R"("partial_rotary_factor": 0.5)"}) {
    EXPECT_THAT(Changed(scaled, R"("rope_type": "default", "rope_theta": 100.0)", older),
                testing::AnyOf(HasSubstr("{\"sliding_attention\":\"linear\"}"),
                               HasSubstr("partial_rotary_factor is 0.5")));
  }
  model->mutable_llama()->mutable_window()->clear_rope_theta();
  EXPECT_THAT(std::string(HfConfig(*model, "float32").status().message()),
              HasSubstr("model.llama.window.rope_theta: give it, as transformers' olmo3"));
}

TEST(HuggingFaceRelatives, Olmo3sKindsOfLayers) {
  const auto window = [](absl::string_view types) {
    const auto model =
        ModelOfHfConfig(absl::StrReplaceAll(kOlmo3, {{R"(["sliding_attention", "sliding_attention",
    "sliding_attention", "full_attention"])",
                                                      types}}));
    return model.ok() ? model->llama().window().ShortDebugString()
                      : std::string(model.status().message());
  };
  EXPECT_EQ(window("null"), "positions: 4096 full_every: 4 rope_theta: 500000");
  EXPECT_EQ(window(R"(null, "sliding_window_pattern": 2)"),  // which transformers does not read
            "positions: 4096 full_every: 4 rope_theta: 500000");
  EXPECT_EQ(window(R"(["sliding_attention", "full_attention"])"),
            "positions: 4096 full_every: 2 rope_theta: 500000");
  EXPECT_EQ(window(R"(["full_attention", "full_attention"])"), "");
  EXPECT_THAT(window(R"(["full_attention", "sliding_attention"])"),
              HasSubstr("layer_types.full_every is [\"full_attention\""));
  // Without windows it is an OLMo 2; an OLMo 3 with windows is not.
  v1::ModelSpec model = *ModelOfHfConfig(kOlmo3);
  model.mutable_llama()->clear_window();
  EXPECT_THAT(*HfConfig(model, "float32"), HasSubstr("Olmo2ForCausalLM"));
  EXPECT_EQ(CheckHfConfig(model, kOlmo3).message(),
            "layer_types.full_every is 4, model.llama.window.full_every needs 1");
}

// mistralai/Mixtral-8x7B-v0.1's.
constexpr char kMixtral[] = R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32000})";

TEST(HuggingFaceRelatives, MixtralHasExperts) {
  const auto model = ModelOfHfConfig(kMixtral);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->llama().experts().ShortDebugString(),
            "count: 8 per_token: 2 hidden: 14336 normalize: true balance_loss: 0.02");
  const std::string same = model->ShortDebugString();
  const std::string written = *HfConfig(*model, "bfloat16");
  EXPECT_THAT(written, HasSubstr("MixtralForCausalLM"));
  EXPECT_THAT(written, HasSubstr("\"router_aux_loss_coef\": 0.02"));
  EXPECT_EQ(ReadBack(written), same);
  for (const char* transformers_default :
       {"\"num_experts_per_tok\": 2,", "\"num_local_experts\": 8,", "\"rms_norm_eps\": 1e-05,",
        "\"rope_theta\": 1000000.0,", "\"num_key_value_heads\": 8,", "\"sliding_window\": null,"}) {
    EXPECT_EQ(Changed(kMixtral, transformers_default, ""), same) << transformers_default;
  }
  EXPECT_THAT(Changed(kMixtral, "\"sliding_window\": null", "\"sliding_window\": 4096"),
              HasSubstr("window { positions: 4096 }"));
}

// Qwen/Qwen3-30B-A3B's.
constexpr char kQwen3Moe[] = R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

TEST(HuggingFaceRelatives, Qwen3HasMixturesToo) {
  const auto model = ModelOfHfConfig(kQwen3Moe);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->llama().qk_norm());
  EXPECT_EQ(model->llama().experts().ShortDebugString(),
            "count: 128 per_token: 8 hidden: 768 normalize: true balance_loss: 0.001");
  const std::string same = model->ShortDebugString();
  EXPECT_THAT(*HfConfig(*model, "float32"), HasSubstr("Qwen3MoeForCausalLM"));
  EXPECT_EQ(ReadBack(*HfConfig(*model, "float32")), same);
  // As transformers 5 writes it.
  EXPECT_EQ(Changed(kQwen3Moe, "\"num_experts\"", "\"num_local_experts\""), same);
  for (const char* transformers_default :
       {"\"num_experts\": 128,", "\"num_experts_per_tok\": 8,", "\"moe_intermediate_size\": 768,",
        "\"mlp_only_layers\": [],", "\"decoder_sparse_step\": 1,", "\"num_key_value_heads\": 4,"}) {
    EXPECT_EQ(Changed(kQwen3Moe, transformers_default, ""), same) << transformers_default;
  }
  EXPECT_THAT(Changed(kQwen3Moe, "\"norm_topk_prob\": true,", ""), HasSubstr("normalize: false"));
}

TEST(HuggingFaceRelatives, MixturesThatAreNotSupportedAreRefusedByName) {
  EXPECT_EQ(Changed(kQwen3Moe, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2"),
            "decoder_sparse_step is 2, this model family needs 1");
  EXPECT_EQ(Changed(kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]"),
            "mlp_only_layers is [0], this model family needs []");
  EXPECT_THAT(Changed(kQwen3Moe, "\"use_sliding_window\": false",
                      "\"use_sliding_window\": true, \"sliding_window\": 128"),
              HasSubstr("use_sliding_window is true, and not false"));
  v1::ModelSpec model = *ModelOfHfConfig(kMixtral);
  EXPECT_THAT(std::string(CheckHfConfig(model, kQwen3Moe).message()),
              HasSubstr("which needs model.llama.experts, and qk_norm: true"));
  model.mutable_llama()->mutable_experts()->set_count(4);
  EXPECT_EQ(CheckHfConfig(model, kMixtral).message(),
            "num_local_experts is 8, model.llama.experts.count needs 4");
  model.mutable_llama()->mutable_experts()->set_normalize(false);
  EXPECT_THAT(std::string(HfConfig(model, "float32").status().message()),
              HasSubstr("model.llama.experts.normalize: transformers' Mixtral always does"));
  model.mutable_llama()->clear_experts();
  EXPECT_THAT(std::string(CheckHfConfig(model, kMixtral).message()),
              HasSubstr("model_type is \"mixtral\", which needs model.llama.experts, and no"));
}

// distilbert/distilbert-base-uncased's.
constexpr char kDistilBert[] = R"({"activation": "gelu", "architectures": ["DistilBertForMaskedLM"],
    "attention_dropout": 0.1, "dim": 768, "dropout": 0.1, "hidden_dim": 3072,
    "initializer_range": 0.02, "max_position_embeddings": 512, "model_type": "distilbert",
    "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false, "tie_weights_": true,
    "transformers_version": "4.10.0.dev0", "vocab_size": 30522})";

TEST(HuggingFaceRelatives, DistilBertIsABertWithoutSegments) {
  const auto model = ModelOfHfConfig(kDistilBert);
  ASSERT_TRUE(model.ok()) << model.status();
  const v1::BertSpec& bert = model->bert();
  EXPECT_TRUE(bert.has_segments());
  EXPECT_EQ(bert.segments(), 0);
  EXPECT_EQ(bert.layers(), 6);
  EXPECT_EQ(bert.hidden(), 3072);
  EXPECT_EQ(ReadBack(R"({"model_type": "distilbert"})"), model->ShortDebugString());
  const std::string written = *HfConfig(*model, "float32");
  EXPECT_THAT(written, HasSubstr("DistilBertForMaskedLM"));
  EXPECT_EQ(ReadBack(written), model->ShortDebugString());
  // Only how positions begin; the folder has them.
  EXPECT_EQ(
      Changed(kDistilBert, "\"sinusoidal_pos_embds\": false", "\"sinusoidal_pos_embds\": true"),
      model->ShortDebugString());
  EXPECT_EQ(Changed(kDistilBert, "\"activation\": \"gelu\"", "\"activation\": \"relu\""),
            "activation is \"relu\", this model family needs \"gelu\"");
  EXPECT_EQ(Changed(kDistilBert, "\"tie_weights_\"", "\"tie_word_embeddings\": false, \"x\""),
            "tie_word_embeddings is false, this model family needs true");
}

TEST(HuggingFaceRelatives, SegmentsTellBertFromDistilBert) {
  const std::string bert = R"({"model_type": "bert"})";
  v1::ModelSpec model = *ModelOfHfConfig(bert);
  EXPECT_THAT(std::string(CheckHfConfig(model, kDistilBert).message()),
              HasSubstr("model_type is \"distilbert\", which needs model.bert.segments: 0"));
  model = *ModelOfHfConfig(kDistilBert);
  EXPECT_THAT(std::string(CheckHfConfig(model, bert).message()),
              HasSubstr("model_type is \"bert\", which needs model.bert.segments of at least 1"));
  model.mutable_bert()->set_norm_epsilon(1e-5);
  EXPECT_EQ(HfConfig(model, "float32").status().message(),
            "model.bert.norm_epsilon: a model without segments is a DistilBERT, and transformers' "
            "has 1e-12, not 1e-05");
}

TEST(HuggingFaceRelatives, DistilBertsNamesWithAndWithoutTheBaseModelsPrefix) {
  const v1::ModelSpec model = *ModelOfHfConfig(kDistilBert);
  const auto first = [&](absl::string_view parameter) {
    std::vector<std::string> names;
    for (const HfPlace& place : HfPlaces(model, parameter)) names.push_back(place.tensor);
    return names;
  };
  EXPECT_THAT(first("distilbert.transformer.layer.0.ffn.lin1.weight"),
              ElementsAre("distilbert.transformer.layer.0.ffn.lin1.weight",
                          "transformer.layer.0.ffn.lin1.weight"));
  EXPECT_THAT(first("vocab_projector.bias"), ElementsAre("vocab_projector.bias"));
}

}  // namespace
}  // namespace milepost::models
