#include "engine/models/hugging_face.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::ModelSpec SmallGpt2() {
  v1::ModelSpec model;
  v1::Gpt2Spec& gpt2 = *model.mutable_gpt2();
  gpt2.set_layers(12);
  gpt2.set_width(768);
  gpt2.set_heads(12);
  gpt2.set_context(1024);
  gpt2.set_vocabulary(50257);
  gpt2.set_dropout(0.1);
  return model;
}

std::vector<std::string> Shown(const v1::ModelSpec& spec, absl::string_view parameter) {
  std::vector<std::string> shown;
  for (const HfPlace& place : HfPlaces(spec, parameter)) {
    const std::string rows =
        place.of == 0 ? "" : absl::StrCat(" ", place.begin, "+", place.rows, " of ", place.of);
    shown.push_back(place.tensor + rows);
  }
  return shown;
}

TEST(HuggingFaceTest, WritesAGpt2Config) {
  const auto config = HfConfig(SmallGpt2(), "float32");
  ASSERT_TRUE(config.ok()) << config.status();
  for (const char* line :
       {"\"architectures\": [\n    \"GPT2LMHeadModel\"\n  ]", "\"model_type\": \"gpt2\"",
        "\"n_layer\": 12", "\"n_embd\": 768", "\"n_head\": 12", "\"n_positions\": 1024",
        "\"vocab_size\": 50257", "\"activation_function\": \"gelu_new\"",
        "\"layer_norm_epsilon\": 1e-05", "\"tie_word_embeddings\": true", "\"resid_pdrop\": 0.1",
        "\"eos_token_id\": 50256", "\"torch_dtype\": \"float32\""}) {
    EXPECT_THAT(*config, HasSubstr(line));
  }
  v1::ModelSpec bytes = SmallGpt2();
  bytes.mutable_gpt2()->set_vocabulary(256);
  EXPECT_THAT(*HfConfig(bytes, "bfloat16"), HasSubstr("\"eos_token_id\": null"));
  EXPECT_TRUE(absl::IsInvalidArgument(HfConfig(v1::ModelSpec(), "float32").status()));
}

TEST(HuggingFaceTest, TokensAreThoseOfAnotherConfig) {
  const auto config = HfConfig(SmallGpt2(), "float32",
                               R"({"eos_token_id": [7, 8], "pad_token_id": 9, "n_layer": 3})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(*config, HasSubstr("\"eos_token_id\": [\n    7,\n    8\n  ]"));
  EXPECT_THAT(*config, HasSubstr("\"bos_token_id\": 50256"));
  EXPECT_THAT(*config, HasSubstr("\"pad_token_id\": 9"));
  EXPECT_THAT(*config, HasSubstr("\"n_layer\": 12"));
  EXPECT_TRUE(absl::IsInvalidArgument(HfConfig(SmallGpt2(), "float32", "x").status()));
}

TEST(HuggingFaceTest, ReadsItsOwnConfigAndTheHubs) {
  EXPECT_TRUE(CheckHfConfig(SmallGpt2(), *HfConfig(SmallGpt2(), "float32")).ok());
  // huggingface.co/gpt2/resolve/main/config.json, in part: what it leaves out has defaults.
  const char hub[] = R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
    "vocab_size": 50257})";
  EXPECT_TRUE(CheckHfConfig(SmallGpt2(), hub).ok()) << CheckHfConfig(SmallGpt2(), hub);
  EXPECT_TRUE(CheckHfConfig(SmallGpt2(), R"({"model_type": "gpt2"})").ok());
}

TEST(HuggingFaceTest, NamesEveryDifferenceWithBothValues) {
  const auto changed = [](const char* from, const char* to) {
    const std::string config = *HfConfig(SmallGpt2(), "float32");
    EXPECT_THAT(config, HasSubstr(from));
    return std::string(
        CheckHfConfig(SmallGpt2(), absl::StrReplaceAll(config, {{from, to}})).message());
  };
  EXPECT_EQ(changed("\"n_layer\": 12", "\"n_layer\": 24"),
            "n_layer is 24, model.gpt2.layers needs 12");
  EXPECT_EQ(changed("\"vocab_size\": 50257", "\"vocab_size\": \"50257\""),
            "vocab_size is \"50257\", model.gpt2.vocabulary needs at most 50257");
  EXPECT_EQ(changed("\"vocab_size\": 50257", "\"vocab_size\": 50256"), "");
  EXPECT_EQ(changed("\"vocab_size\": 50257", "\"vocab_size\": 50258"),
            "vocab_size is 50258, model.gpt2.vocabulary needs at most 50257");
  EXPECT_EQ(changed("\"gelu_new\"", "\"relu\""),
            "activation_function is \"relu\", this model family needs \"gelu_new\"");
  EXPECT_EQ(changed("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"),
            "tie_word_embeddings is false, this model family needs true");
  EXPECT_EQ(changed("\"n_inner\": null", "\"n_inner\": 3072"), "");
  EXPECT_THAT(changed("\"n_inner\": null", "\"n_inner\": 3000"), HasSubstr("n_inner is 3000"));
  EXPECT_EQ(changed("\"model_type\": \"gpt2\"", "\"x\": 1"), "model_type is missing");
  EXPECT_EQ(changed("\"initializer_range\": 0.02", "\"initializer_range\": 1"), "");

  v1::ModelSpec wide = SmallGpt2();
  wide.mutable_gpt2()->set_width(1024);
  wide.mutable_gpt2()->set_heads(16);
  EXPECT_EQ(CheckHfConfig(wide, R"({"model_type": "gpt2", "n_embd": 768})").message(),
            "n_embd is 768, model.gpt2.width needs 1024\n"
            "n_head is 12 (it is not given), model.gpt2.heads needs 16");
}

// Llama 3.2 1B.
v1::ModelSpec Llama() {
  v1::ModelSpec model;
  v1::LlamaSpec& llama = *model.mutable_llama();
  llama.set_layers(16);
  llama.set_width(2048);
  llama.set_heads(32);
  llama.set_kv_heads(8);
  llama.set_head_dim(64);
  llama.set_hidden(8192);
  llama.set_context(8192);
  llama.set_vocabulary(128256);
  llama.set_rope_theta(500000);
  llama.mutable_rope_scaling()->set_factor(32);
  llama.mutable_rope_scaling()->set_low_freq_factor(1);
  llama.mutable_rope_scaling()->set_high_freq_factor(4);
  llama.mutable_rope_scaling()->set_original_context(8192);
  llama.set_norm_epsilon(1e-5);
  llama.set_tied(true);
  llama.set_qkv_bias(false);
  return model;
}

// As on the hub (rope_scaling, rope_theta) and as transformers 5 writes it (rope_parameters).
constexpr char kLlamaHub[] = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
  "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
  "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})";

TEST(HuggingFaceTest, ReadsAndWritesLlama) {
  EXPECT_EQ(CheckHfConfig(Llama(), *HfConfig(Llama(), "float32")), absl::OkStatus());
  EXPECT_EQ(CheckHfConfig(Llama(), kLlamaHub), absl::OkStatus());
  const std::string v5 = absl::StrReplaceAll(
      kLlamaHub, {{"\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 500000.0, "},
                  {", \"rope_theta\": 500000.0, \"tie", ", \"tie"}});
  EXPECT_THAT(v5, Not(HasSubstr("rope_scaling")));
  EXPECT_EQ(CheckHfConfig(Llama(), v5), absl::OkStatus());

  const auto changed = [](const char* from, const char* to) {
    EXPECT_THAT(kLlamaHub, HasSubstr(from));
    return std::string(
        CheckHfConfig(Llama(), absl::StrReplaceAll(kLlamaHub, {{from, to}})).message());
  };
  EXPECT_EQ(changed("\"max_position_embeddings\": 131072", "\"max_position_embeddings\": 4096"),
            "");
  EXPECT_EQ(changed("\"factor\": 32.0", "\"factor\": 8.0"),
            "rope_scaling.factor is 8.0, model.llama.rope_scaling.factor needs 32.0");
  EXPECT_EQ(changed("\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\""),
            "rope_scaling.rope_type is \"yarn\", model.llama.rope_scaling needs \"llama3\"");
  EXPECT_EQ(changed("\"rope_theta\": 500000.0", "\"rope_theta\": 10000"),
            "rope_theta is 10000, model.llama.rope_theta needs 500000.0");
  EXPECT_EQ(changed("\"attention_bias\": false", "\"attention_bias\": true"),
            "attention_bias is true, this model family needs false");
  EXPECT_EQ(changed("\"num_key_value_heads\": 8,", ""),
            "num_key_value_heads is 32 (it is not given), model.llama.kv_heads needs 8");
  EXPECT_EQ(changed("\"head_dim\": 64,", ""), "");
  EXPECT_EQ(changed("\"head_dim\": 64", "\"head_dim\": 128"),
            "head_dim is 128, model.llama.head_dim needs 64");
  EXPECT_THAT(Shown(Llama(), "model.norm.weight"), ElementsAre("model.norm.weight", "norm.weight"));
}

TEST(HuggingFaceTest, ReadsMistralAndQwen) {
  v1::ModelSpec model = Llama();
  model.mutable_llama()->clear_rope_scaling();
  const std::string plain = absl::StrReplaceAll(*HfConfig(model, "float32"),
                                                {{"\"sliding_window\": null", "\"x\": null"}});
  EXPECT_THAT(plain, Not(HasSubstr("rope_scaling")));
  const std::string mistral = absl::StrReplaceAll(plain, {{"\"llama\"", "\"mistral\""}});
  // Mistral's default window of 4096 is shorter than this context of 8192.
  EXPECT_EQ(CheckHfConfig(model, mistral).message(),
            "sliding_window is 4096, model.llama.context needs at least 8192");
  model.mutable_llama()->set_context(4096);
  EXPECT_EQ(CheckHfConfig(model, mistral), absl::OkStatus());
  const std::string qwen2 = absl::StrReplaceAll(
      plain, {{"\"llama\"", "\"qwen2\""}, {"\"x\": null", "\"sliding_window\": 10"}});
  EXPECT_EQ(CheckHfConfig(model, qwen2).message(),
            "model_type is \"qwen2\", which needs model.llama.qkv_bias: true, and nothing "
            "of Gemma's");
  model.mutable_llama()->set_qkv_bias(true);
  EXPECT_EQ(CheckHfConfig(model, qwen2), absl::OkStatus());
  EXPECT_THAT(*HfConfig(model, "float32"), HasSubstr("Qwen2ForCausalLM"));
  const std::string qwen3 = absl::StrReplaceAll(qwen2, {{"\"qwen2\"", "\"qwen3\""}});
  EXPECT_EQ(CheckHfConfig(model, qwen3).message(),
            "model_type is \"qwen3\", which needs model.llama.qk_norm: true, no experts, "
            "and nothing of Gemma's");
  model.mutable_llama()->set_qkv_bias(false);
  model.mutable_llama()->set_qk_norm(true);
  EXPECT_EQ(CheckHfConfig(model, qwen3), absl::OkStatus());
  EXPECT_EQ(CheckHfConfig(model, qwen2).message(),
            "model_type is \"qwen2\", which needs model.llama.qkv_bias: true, and nothing "
            "of Gemma's");
  EXPECT_EQ(
      CheckHfConfig(model, plain).message(),
      "model_type is \"llama\", which needs none of qk_norm, wide_qk_norm, qkv_bias, norm_offset, "
      "post_norms, scale_embedding and experts");
  EXPECT_EQ(
      CheckHfConfig(model, absl::StrReplaceAll(plain, {{"\"llama\"", "\"gemma2\""}})).message(),
      "model_type is \"gemma2\", which is not supported; there are gpt2, llama, gemma, "
      "gemma3_text, mistral, mixtral, olmo2, olmo3, phi3, qwen2, qwen3, qwen3_moe, bert, "
      "distilbert, roberta, xlm-roberta, camembert, resnet, vit");
  EXPECT_EQ(CheckHfConfig(SmallGpt2(), plain).message(),
            "model_type is \"llama\", which is model.llama, and the spec has model.gpt2");
  // transformers' defaults, where a config leaves them out, are not the other families'.
  EXPECT_EQ(CheckHfConfig(model, absl::StrReplaceAll(qwen3, {{"\"head_dim\"", "\"x\""}})).message(),
            "head_dim is 128 (it is not given), model.llama.head_dim needs 64");
  EXPECT_THAT(*HfConfig(model, "float32"), HasSubstr("Qwen3ForCausalLM"));
}

TEST(HuggingFaceTest, TheActivationIsTheSpecs) {
  v1::ModelSpec model = Llama();
  const std::string silu = *HfConfig(model, "float32");
  EXPECT_THAT(silu, HasSubstr("\"hidden_act\": \"silu\""));
  model.mutable_llama()->set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
  EXPECT_EQ(CheckHfConfig(model, silu).message(),
            "hidden_act is \"silu\", model.llama.activation needs \"gelu_pytorch_tanh\"");
  const std::string gelu = *HfConfig(model, "float32");
  EXPECT_THAT(gelu, HasSubstr("\"hidden_act\": \"gelu_pytorch_tanh\""));
  EXPECT_EQ(CheckHfConfig(model, gelu), absl::OkStatus());
}

TEST(HuggingFaceTest, ReadsAndWritesBert) {
  v1::ModelSpec model;
  v1::BertSpec& bert = *model.mutable_bert();
  bert.set_layers(12);
  bert.set_width(768);
  bert.set_heads(12);
  bert.set_hidden(3072);
  bert.set_context(512);
  bert.set_vocabulary(30522);
  bert.set_segments(2);
  bert.set_norm_epsilon(1e-12);
  EXPECT_EQ(CheckHfConfig(model, *HfConfig(model, "float32")), absl::OkStatus());
  EXPECT_THAT(*HfConfig(model, "float32"), HasSubstr("BertForMaskedLM"));
  // huggingface.co/bert-base-uncased/resolve/main/config.json
  const char hub[] = R"({"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
    "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522})";
  EXPECT_EQ(CheckHfConfig(model, hub), absl::OkStatus());
  EXPECT_EQ(
      CheckHfConfig(model, absl::StrReplaceAll(hub, {{"\"gelu\"", "\"gelu_new\""}})).message(),
      "hidden_act is \"gelu_new\", this model family needs \"gelu\"");
  bert.set_segments(1);
  EXPECT_EQ(CheckHfConfig(model, hub).message(),
            "type_vocab_size is 2, model.bert.segments needs 1");
  EXPECT_THAT(Shown(model, "bert.embeddings.LayerNorm.weight"),
              ElementsAre("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma",
                          "roberta.embeddings.LayerNorm.weight", "embeddings.LayerNorm.weight",
                          "embeddings.LayerNorm.gamma"));
  EXPECT_THAT(Shown(model, "cls.predictions.bias"),
              ElementsAre("cls.predictions.bias", "lm_head.bias"));
}

std::string ModelOf(const std::string& config) {
  const auto model = ModelOfHfConfig(config);
  return model.ok() ? model->ShortDebugString() : std::string(model.status().message());
}

TEST(HuggingFaceTest, AConfigIsAModel) {
  v1::ModelSpec gpt2 = SmallGpt2();
  gpt2.mutable_gpt2()->clear_dropout();
  EXPECT_EQ(ModelOf(*HfConfig(gpt2, "float32")), gpt2.ShortDebugString());
  EXPECT_EQ(ModelOf(R"({"model_type": "gpt2"})"), gpt2.ShortDebugString());

  v1::ModelSpec llama = Llama();
  llama.mutable_llama()->set_qk_norm(false);
  EXPECT_EQ(ModelOf(*HfConfig(llama, "float32")), llama.ShortDebugString());
  llama.mutable_llama()->set_context(131072);
  EXPECT_EQ(ModelOf(kLlamaHub), llama.ShortDebugString());
  llama.mutable_llama()->clear_rope_scaling();
  llama.mutable_llama()->set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
  EXPECT_EQ(ModelOf(*HfConfig(llama, "float32")), llama.ShortDebugString());

  EXPECT_TRUE(ModelOfHfConfig(R"({"model_type": "bert"})").ok());
  EXPECT_EQ(ModelOfHfConfig(R"({"model_type": "bert"})")->bert().hidden(), 3072);

  v1::ModelSpec resnet;
  for (const int64_t layers : {2, 2, 2, 2})
    resnet.mutable_resnet()->add_stages()->set_layers(layers);
  resnet.mutable_resnet()->set_bottleneck(false);
  resnet.mutable_resnet()->set_width(64);
  resnet.mutable_resnet()->set_classes(10);
  EXPECT_EQ(ModelOf(*HfConfig(resnet, "float32")), resnet.ShortDebugString());
}

TEST(HuggingFaceTest, ReadsAndWritesVit) {
  // google/vit-base-patch16-224's, with fewer classes.
  const std::string hub = R"({"architectures": ["ViTForImageClassification"],
    "attention_probs_dropout_prob": 0.0, "encoder_stride": 16, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0, "hidden_size": 768, "id2label": {"0": "tench", "1": "eel",
    "2": "shark"}, "image_size": 224, "initializer_range": 0.02, "intermediate_size": 3072,
    "label2id": {"tench": 0, "eel": 1, "shark": 2}, "layer_norm_eps": 1e-12, "model_type": "vit",
    "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16,
    "qkv_bias": true})";
  v1::ModelSpec model;
  v1::VitSpec& vit = *model.mutable_vit();
  vit.set_layers(12);
  vit.set_width(768);
  vit.set_heads(12);
  vit.set_hidden(3072);
  vit.set_classes(3);
  vit.set_image_size(224);
  vit.set_patch_size(16);
  vit.set_norm_epsilon(1e-12);
  EXPECT_EQ(ModelOf(hub), model.ShortDebugString());
  EXPECT_EQ(ModelOf(*HfConfig(model, "float32")), model.ShortDebugString());
  EXPECT_THAT(*HfConfig(model, "float32"), HasSubstr("\"ViTForImageClassification\""));
  EXPECT_EQ(Shown(model, "vit.embeddings.cls_token")[1], "embeddings.cls_token");
  const auto refused = [&](const char* from, const char* to) {
    EXPECT_THAT(hub, HasSubstr(from));
    return ModelOf(absl::StrReplaceAll(hub, {{from, to}}));
  };
  EXPECT_EQ(refused("\"gelu\"", "\"gelu_new\""),
            "hidden_act is \"gelu_new\", this model family needs \"gelu\"");
  EXPECT_EQ(refused("\"qkv_bias\": true", "\"qkv_bias\": false"),
            "qkv_bias is false, this model family needs true");
  EXPECT_EQ(refused("\"num_channels\": 3", "\"num_channels\": 1"),
            "num_channels is 1, this model family needs 3");
  EXPECT_EQ(refused("\"image_size\": 224", "\"image_size\": [224, 192]"),
            "image_size is [224,192], and not a whole number");
  vit.set_image_size(384);
  vit.set_classes(4);
  EXPECT_EQ(CheckHfConfig(model, hub).message(),
            "num_labels is 3, model.vit.classes needs 4\n"
            "image_size is 224, model.vit.image_size needs 384");
}

TEST(HuggingFaceTest, QwenAndMistralAreModels) {
  // Qwen/Qwen3-0.6B's, in part.
  const char qwen3[] = R"({"model_type": "qwen3", "attention_bias": false, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
    "use_sliding_window": false, "vocab_size": 151936})";
  const auto model = ModelOfHfConfig(qwen3);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->llama().qk_norm());
  EXPECT_EQ(model->llama().head_dim(), 128);
  EXPECT_EQ(model->llama().norm_epsilon(), 1e-6);
  // mistralai/Mistral-7B-v0.1's.
  const char mistral[] = R"({"model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 32000})";
  ASSERT_TRUE(ModelOfHfConfig(mistral).ok()) << ModelOfHfConfig(mistral).status();
  EXPECT_EQ(ModelOfHfConfig(mistral)->llama().context(), 32768);
  EXPECT_EQ(ModelOfHfConfig(mistral)->llama().window().positions(), 4096);
  // Later ones have none.
  const std::string later =
      absl::StrReplaceAll(mistral, {{"\"sliding_window\": 4096", "\"sliding_window\": null"}});
  EXPECT_FALSE(ModelOfHfConfig(later)->llama().has_window());
  EXPECT_THAT(*HfConfig(*ModelOfHfConfig(later), "float32"), HasSubstr("LlamaForCausalLM"));
}

TEST(HuggingFaceTest, AWindowIsMistrals) {
  v1::ModelSpec model = Llama();
  model.mutable_llama()->set_qk_norm(false);
  model.mutable_llama()->mutable_window()->set_positions(512);
  const std::string config = *HfConfig(model, "float32");
  EXPECT_THAT(config, HasSubstr("MistralForCausalLM"));
  EXPECT_THAT(config, HasSubstr("\"sliding_window\": 512"));
  EXPECT_EQ(ModelOf(config), model.ShortDebugString());
  model.mutable_llama()->mutable_window()->set_positions(256);
  EXPECT_EQ(CheckHfConfig(model, config).message(),
            "sliding_window is 512, model.llama.window.positions needs 256");
  model.mutable_llama()->mutable_window()->set_full_every(2);
  EXPECT_THAT(HfConfig(model, "float32").status().message(),
              HasSubstr("transformers has no model with this choice"));
}

// google/gemma-3-1b-it's, in part, as transformers 4 writes it.
constexpr char kGemma3[] = R"({"model_type": "gemma3_text", "attention_bias": false,
    "attn_logit_softcapping": null, "final_logit_softcapping": null, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26,
    "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144})";

TEST(HuggingFaceTest, Gemma3IsAModel) {
  const auto model = ModelOfHfConfig(kGemma3);
  ASSERT_TRUE(model.ok()) << model.status();
  const v1::LlamaSpec& llama = model->llama();
  EXPECT_EQ(llama.window().positions(), 512);
  EXPECT_EQ(llama.window().full_every(), 6);
  EXPECT_EQ(llama.window().rope_theta(), 10000);
  EXPECT_EQ(llama.rope_theta(), 1e6);
  EXPECT_TRUE(llama.tied() && llama.qk_norm() && llama.post_norms() && llama.norm_offset());
  EXPECT_EQ(CheckHfConfig(*model, kGemma3), absl::OkStatus());
  const std::string written = *HfConfig(*model, "bfloat16");
  EXPECT_THAT(written, HasSubstr("Gemma3ForCausalLM"));
  EXPECT_EQ(ModelOf(written), model->ShortDebugString());

  const auto changed = [&](absl::string_view from, absl::string_view to) {
    EXPECT_THAT(kGemma3, HasSubstr(from));
    return ModelOf(absl::StrReplaceAll(kGemma3, {{from, to}}));
  };
  // As transformers 5 writes it.
  EXPECT_EQ(changed("\"rope_local_base_freq\": 10000, \"rope_scaling\": null, "
                    "\"rope_theta\": 1000000",
                    R"("rope_parameters": {
                        "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
                        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}})"),
            model->ShortDebugString());
  EXPECT_THAT(changed("\"rope_scaling\": null",
                      R"("rope_scaling": {"rope_type": "linear", "factor": 8.0})"),
              HasSubstr("rope_scaling { factor: 8 type: TYPE_LINEAR }"));
  EXPECT_EQ(changed("\"query_pre_attn_scalar\": 256", "\"query_pre_attn_scalar\": 168"),
            "query_pre_attn_scalar is 168, model.llama.head_dim needs 256");
  EXPECT_EQ(changed("\"final_logit_softcapping\": null", "\"final_logit_softcapping\": 30.0"),
            "final_logit_softcapping is 30.0, this model family needs null");
  EXPECT_EQ(changed("\"attention_bias\"", "\"use_bidirectional_attention\": true, \"x\""),
            "use_bidirectional_attention is true, this model family needs false");
  EXPECT_THAT(changed("\"sliding_window_pattern\": 6",
                      "\"layer_types\": [\"sliding_attention\", \"strange\"]"),
              HasSubstr("layer_types.full_every is [\"sliding_attention\",\"strange\"]"));
}

// transformers' layers with a window have no scaling: with it they would be another model's.
TEST(HuggingFaceTest, Gemma3sLayersWithAWindowHaveNoScaling) {
  v1::ModelSpec model = *ModelOfHfConfig(kGemma3);
  model.mutable_llama()->mutable_rope_scaling()->set_type(v1::RopeScalingSpec::TYPE_LINEAR);
  model.mutable_llama()->mutable_rope_scaling()->set_factor(8);
  EXPECT_EQ(HfConfig(model, "float32").status(), absl::OkStatus());
  model.mutable_llama()->mutable_window()->clear_rope_theta();
  EXPECT_THAT(std::string(HfConfig(model, "float32").status().message()),
              HasSubstr("model.llama.window.rope_theta: give it, as"));
  EXPECT_FALSE(CheckHfConfig(model, kGemma3).ok());
}

TEST(HuggingFaceTest, Gemma3sRotaryPositionsMayBeGarbage) {
  for (const char* full : {"1", "[]", "\"x\"", "null"}) {
    const std::string config = absl::StrReplaceAll(
        kGemma3, {{"\"rope_scaling\": null",
                   absl::StrCat(R"("rope_parameters": {"full_attention": )", full,
                                R"(, "sliding_attention": {"rope_type": "linear"}})")}});
    EXPECT_THAT(ModelOf(config), HasSubstr("rope")) << config;
  }
}

// Where a key is absent, and where it is null.
TEST(HuggingFaceTest, RelativesOfLlamaHaveDefaultsOfTheirOwn) {
  const auto heads = [](absl::string_view type, absl::string_view keys) {
    const auto model = ModelOfHfConfig(absl::StrCat(
        R"({"hidden_size": 64, "num_attention_heads": 32, "num_hidden_layers": 2, "head_dim": 8,
            "intermediate_size": 96, "max_position_embeddings": 64, "vocab_size": 9,)",
        keys, R"("model_type": ")", type, "\"}"));
    return model.ok() ? model->llama().kv_heads() : -1;
  };
  EXPECT_EQ(heads("llama", ""), 32);
  EXPECT_EQ(heads("mistral", R"("sliding_window": null,)"), 8);
  EXPECT_EQ(heads("mistral", R"("num_key_value_heads": null,)"), 32);
  EXPECT_EQ(heads("phi3", R"("sliding_window": 16,)"), 32);
  EXPECT_EQ(heads("gemma", ""), 16);
}

// Llama has none, whatever its config says; some layers of a Qwen have it.
TEST(HuggingFaceTest, AWindowIsReadWhereTransformersReadsIt) {
  const std::string keys = R"({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
      "intermediate_size": 96, "max_position_embeddings": 64, "vocab_size": 9,
      "num_key_value_heads": 4, "head_dim": 16, "sliding_window": 4, "model_type": )";
  EXPECT_FALSE(ModelOfHfConfig(keys + "\"llama\"}")->llama().has_window());
  EXPECT_TRUE(ModelOfHfConfig(keys + "\"mistral\"}")->llama().has_window());
  EXPECT_FALSE(ModelOfHfConfig(keys + "\"qwen2\"}")->llama().has_window());
  EXPECT_THAT(ModelOf(keys + R"("qwen3", "use_sliding_window": true})"),
              HasSubstr("use_sliding_window is true, and not false, as a window in some layers"));
}

TEST(HuggingFaceTest, Gemma3sKindsOfLayers) {
  const auto every = [](absl::string_view types) {
    const auto model = ModelOfHfConfig(absl::StrReplaceAll(
        kGemma3, {{"\"sliding_window_pattern\": 6", absl::StrCat("\"layer_types\": ", types)}}));
    if (!model.ok()) return int64_t{-1};
    return model->llama().has_window() ? model->llama().window().full_every() : 1;
  };
  EXPECT_EQ(every("null"), 6) << "transformers' default";
  EXPECT_EQ(every(R"(["sliding_attention", "full_attention", "sliding_attention"])"), 2);
  EXPECT_EQ(every(R"(["sliding_attention", "sliding_attention"])"), 0);
  EXPECT_EQ(every(R"(["full_attention", "full_attention"])"), 1);
  EXPECT_EQ(every(R"(["full_attention", "sliding_attention"])"), -1);
}

TEST(HuggingFaceTest, GemmaIsAModel) {
  // google/gemma-2b's, in part: transformers 4 reads the other key, and has tanh's form where it is
  // absent.
  const char gemma[] = R"({"model_type": "gemma", "head_dim": 256, "hidden_act": "gelu",
    "hidden_size": 2048, "intermediate_size": 16384, "max_position_embeddings": 8192,
    "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "vocab_size": 256000})";
  const auto model = ModelOfHfConfig(gemma);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->llama().norm_offset() && model->llama().scale_embedding());
  EXPECT_FALSE(model->llama().post_norms() || model->llama().has_window());
  EXPECT_EQ(model->llama().activation(), v1::LlamaSpec::ACTIVATION_GEGLU);
  EXPECT_EQ(ModelOf(*HfConfig(*model, "float32")), model->ShortDebugString());
  EXPECT_THAT(std::string(CheckHfConfig(Llama(), gemma).message()),
              HasSubstr("model_type is \"gemma\", which needs norm_offset, scale_embedding"));
}

TEST(HuggingFaceTest, Phi3IsALlamaOfFewerTensors) {
  // microsoft/Phi-3-mini-4k-instruct's, in part.
  const char phi3[] = R"({"model_type": "phi3", "attention_bias": false, "embd_pdrop": 0.0,
    "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "resid_pdrop": 0.0,
    "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047,
    "tie_word_embeddings": false, "vocab_size": 32064})";
  const auto model = ModelOfHfConfig(phi3);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->llama().context(), 4096);
  EXPECT_EQ(model->llama().window().positions(), 2047);
  EXPECT_EQ(model->llama().head_dim(), 96);
  EXPECT_EQ(model->llama().norm_epsilon(), 1e-5) << "transformers' default of this type";
  EXPECT_THAT(*HfConfig(*model, "float32"), HasSubstr("\"model_type\": \"mistral\""));
  EXPECT_THAT(*HfConfig(*model, "float32"), Not(HasSubstr("partial_rotary_factor")));
  const auto changed = [&](const char* from, const char* to) {
    EXPECT_THAT(phi3, HasSubstr(from));
    return ModelOf(absl::StrReplaceAll(phi3, {{from, to}}));
  };
  EXPECT_EQ(changed("\"embd_pdrop\": 0.0", "\"partial_rotary_factor\": 0.75"),
            "partial_rotary_factor is 0.75, this model family needs 1.0");
  EXPECT_EQ(changed("\"rope_scaling\": null",
                    R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})"),
            "partial_rotary_factor is 0.5, this model family needs 1.0");
  EXPECT_EQ(changed("\"rope_scaling\": null", R"("rope_scaling": {"type": "longrope"})"),
            "rope_scaling.rope_type is \"longrope\", and not default, linear or llama3, which are "
            "supported");
}

TEST(HuggingFaceTest, RowsOfATensorOfSeveralParameters) {
  v1::ModelSpec model;
  v1::LlamaSpec& llama = *model.mutable_llama();
  llama.set_heads(4), llama.set_kv_heads(2), llama.set_head_dim(8), llama.set_hidden(96);
  const auto first = [&](const char* name) {
    return Shown(model, absl::StrCat("model.layers.3.", name, ".weight"))[0];
  };
  const std::string qkv = "model.layers.3.self_attn.qkv_proj.weight ";
  EXPECT_EQ(first("self_attn.q_proj"), qkv + "0+32 of 64");
  EXPECT_EQ(first("self_attn.k_proj"), qkv + "32+16 of 64");
  EXPECT_EQ(first("self_attn.v_proj"), qkv + "48+16 of 64");
  const std::string gate_up = "model.layers.3.mlp.gate_up_proj.weight ";
  EXPECT_EQ(first("mlp.gate_proj"), gate_up + "0+96 of 192");
  EXPECT_EQ(first("mlp.up_proj"), gate_up + "96+96 of 192");
  EXPECT_EQ(first("mlp.down_proj"), "model.layers.3.mlp.down_proj.weight");
  EXPECT_THAT(Shown(model, "model.layers.3.mlp.up_proj.weight"),
              ElementsAre(gate_up + "96+96 of 192", "layers.3.mlp.gate_up_proj.weight 96+96 of 192",
                          "model.layers.3.mlp.up_proj.weight", "layers.3.mlp.up_proj.weight"));
  EXPECT_EQ(ShowHfPlaces(HfPlaces(model, "lm_head.weight")), "lm_head.weight");
  EXPECT_THAT(ShowHfPlaces(HfPlaces(model, "model.layers.3.mlp.up_proj.weight")),
              HasSubstr("gate_up_proj.weight of 192 rows or "));
}

TEST(HuggingFaceTest, RobertaIsABert) {
  // FacebookAI/roberta-base's, in part.
  const char roberta[] = R"({"model_type": "roberta", "hidden_act": "gelu", "hidden_size": 768,
    "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1,
    "vocab_size": 50265})";
  const auto model = ModelOfHfConfig(roberta);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->bert().context(), 512);
  EXPECT_EQ(model->bert().segments(), 1);
  EXPECT_EQ(model->bert().norm_epsilon(), 1e-5);
  EXPECT_EQ(ModelOfHfConfig(R"({"model_type": "roberta"})")->bert().vocabulary(), 50265);
  EXPECT_EQ(ModelOfHfConfig(R"({"model_type": "xlm-roberta"})")->bert().vocabulary(), 30522);
  EXPECT_EQ(ModelOf(absl::StrReplaceAll(roberta, {{"pad_token_id\": 1", "pad_token_id\": 0"}})),
            "roberta.pad_token_id is 0, this model family needs 1");
  EXPECT_THAT(*HfConfig(*model, "float32"), Not(HasSubstr("roberta.")));
  EXPECT_EQ(ModelOfHfConfig(R"({"model_type": "camembert"})")->bert().context(), 510);
  EXPECT_THAT(ModelOf(absl::StrReplaceAll(roberta, {{"514", "\"x\""}})),
              HasSubstr("max_position_embeddings is \"x\", and not a whole number"));
  EXPECT_THAT(ModelOf(absl::StrReplaceAll(roberta, {{"514", "-9223372036854775808"}})),
              HasSubstr("is -9223372036854775808, and not a whole number"));
  EXPECT_THAT(ModelOf(absl::StrReplaceAll(roberta, {{"514", "1"}})),
              HasSubstr("max_position_embeddings is -1, and not a whole number"));
  EXPECT_THAT(Shown(*model, "bert.encoder.layer.0.output.LayerNorm.bias"),
              testing::Contains("roberta.encoder.layer.0.output.LayerNorm.bias"));
  EXPECT_THAT(Shown(*model, "cls.predictions.transform.LayerNorm.weight"),
              testing::Contains("lm_head.layer_norm.weight"));
  EXPECT_THAT(Shown(*model, "cls.predictions.transform.dense.bias"),
              testing::Contains("lm_head.dense.bias"));
  EXPECT_THAT(Shown(*model, "cls.predictions.bias"), testing::Contains("lm_head.bias"));
  const std::string positions = "embeddings.position_embeddings.weight";
  EXPECT_THAT(Shown(*model, "bert." + positions),
              ElementsAre("roberta." + positions + " 2+512 of 514", positions + " 2+512 of 514",
                          "bert." + positions, positions));
}

TEST(HuggingFaceTest, AConfigThatIsNoModelIsRefused) {
  const auto changed = [](const char* from, const char* to) {
    EXPECT_THAT(kLlamaHub, HasSubstr(from));
    return ModelOf(absl::StrReplaceAll(kLlamaHub, {{from, to}}));
  };
  EXPECT_THAT(ModelOf(R"({"model_type": "mamba"})"),
              HasSubstr("model_type is \"mamba\", which is not supported; there are gpt2"));
  EXPECT_EQ(ModelOf("{}"), "model_type is missing");
  EXPECT_THAT(ModelOf("["), HasSubstr("not valid JSON"));
  EXPECT_EQ(changed("\"hidden_size\": 2048", "\"x\": 1"), "hidden_size is missing");
  EXPECT_EQ(changed("\"hidden_size\": 2048", "\"hidden_size\": 2048.5"),
            "hidden_size is 2048.5, and not a whole number");
  EXPECT_EQ(changed("\"hidden_size\": 2048", "\"hidden_size\": -1"),
            "hidden_size is -1, and not a whole number");
  EXPECT_EQ(changed("\"rope_theta\": 500000.0", "\"rope_theta\": \"x\""),
            "rope_theta is \"x\", and not a number");
  EXPECT_EQ(changed("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1"),
            "tie_word_embeddings is 1, and not true or false");
  EXPECT_EQ(changed("\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\""),
            "rope_scaling.rope_type is \"yarn\", and not default, linear or llama3, which are "
            "supported");
  EXPECT_EQ(changed("\"mlp_bias\": false", "\"mlp_bias\": true"),
            "mlp_bias is true, this model family needs false");
  EXPECT_EQ(changed("\"hidden_act\": \"silu\"", "\"hidden_act\": \"relu\""),
            "hidden_act is \"relu\", model.llama.activation needs \"silu\"");
  EXPECT_THAT(ModelOf(R"({"model_type": "resnet", "depths": 5})"), HasSubstr("depths is 5"));
  std::string many = "1";
  for (int i = 0; i < 100; ++i) many += ",1";
  EXPECT_THAT(ModelOf(absl::StrCat(R"({"model_type": "resnet", "depths": [)", many, "]}")),
              HasSubstr("a list of the stages' layers"));
}

TEST(HuggingFaceTest, RefusesWhatIsNoConfig) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON"},
      {"[]", "not a JSON object"},
      {"{\"a\": \"\xff\"}", "not valid JSON"},
      {std::string(100000, '['), "not"},
      {absl::StrCat("{\"a\":", std::string(1000, '['), std::string(1000, ']'), "}"),
       "nested too deeply"},
      {std::string((1 << 20) + 1, ' '), "longer than"},
  };
  for (const auto& [text, message] : cases) {
    const absl::Status status = CheckHfConfig(SmallGpt2(), text);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

TEST(HuggingFaceTest, NamesWithAndWithoutTheBaseModelsPrefix) {
  EXPECT_THAT(Shown(SmallGpt2(), "transformer.wte.weight"),
              ElementsAre("transformer.wte.weight", "wte.weight"));
  EXPECT_THAT(Shown(SmallGpt2(), "lm_head.weight"), ElementsAre("lm_head.weight"));
}

}  // namespace
}  // namespace milepost::models
