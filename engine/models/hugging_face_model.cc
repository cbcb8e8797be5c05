// The part of hugging_face.h that makes a model's spec of a config.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "engine/models/hugging_face.h"
#include "engine/models/hugging_face_config.h"
#include "engine/models/hugging_face_family.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

// No model's size is larger: what is computed from sizes does not overflow.
constexpr int64_t kLargestSize = int64_t{1} << 32;
constexpr size_t kMostStages = 16;

// Reads values by their keys, with transformers' defaults, and remembers what is wrong.
class ConfigReader {
 public:
  explicit ConfigReader(const HfJson& config) : config_(config) {}

  const HfJson& At(const char* key) const {
    static const HfJson kNull;
    const auto found = config_.find(key);
    return found == config_.end() ? kNull : *found;
  }
  bool Has(const char* key) const { return !At(key).is_null(); }
  bool Is(const char* key, absl::string_view text) const {
    return At(key).is_string() && At(key).get<std::string>() == text;
  }

  int64_t Size(const char* key, std::optional<int64_t> if_absent = std::nullopt) {
    const HfJson& value = At(key);
    if (value.is_null()) {
      if (!if_absent) problems_.push_back(absl::StrCat(key, " is missing"));
      return if_absent.value_or(0);
    }
    return SizeOf(key, value);
  }
  int64_t SizeOf(const char* key, const HfJson& value) {
    const bool whole = value.is_number_integer() && value >= 0 && value <= kLargestSize;
    if (!whole) Expected(key, value, "a whole number");
    return whole ? value.get<int64_t>() : 0;
  }
  double Real(const char* key, double if_absent) {
    const HfJson& value = At(key);
    if (value.is_null()) return if_absent;
    if (!value.is_number()) Expected(key, value, "a number");
    return value.is_number() ? value.get<double>() : if_absent;
  }
  bool Flag(const char* key, bool if_absent) {
    const HfJson& value = At(key);
    if (value.is_null()) return if_absent;
    if (!value.is_boolean()) Expected(key, value, "true or false");
    return value.is_boolean() ? value.get<bool>() : if_absent;
  }
  void Expected(const char* key, const HfJson& value, absl::string_view what) {
    problems_.push_back(absl::StrCat(key, " is ", HfShown(value), ", and not ", what));
  }

  absl::Status Problems() const {
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  const HfJson& config_;
  std::vector<std::string> problems_;
};

void ReadGpt2(ConfigReader* config, v1::Gpt2Spec* spec) {
  spec->set_layers(config->Size("n_layer", 12));
  spec->set_width(config->Size("n_embd", 768));
  spec->set_heads(config->Size("n_head", 12));
  spec->set_context(config->Size("n_positions", 1024));
  spec->set_vocabulary(config->Size("vocab_size", 50257));
}

void ReadRope(ConfigReader* config, v1::LlamaSpec* spec) {
  constexpr char kType[] = "rope_scaling.rope_type";
  spec->set_rope_theta(config->Real("rope_theta", 10000));
  if (!config->Has(kType) || config->Is(kType, "default")) return;
  const bool linear = config->Is(kType, "linear");
  if (!linear && !config->Is(kType, "llama3")) {
    return config->Expected(kType, config->At(kType),
                            "default, linear or llama3, which are supported");
  }
  v1::RopeScalingSpec* rope = spec->mutable_rope_scaling();
  if (linear) rope->set_type(v1::RopeScalingSpec::TYPE_LINEAR);
  rope->set_factor(config->Real("rope_scaling.factor", linear ? 1 : 8));
  if (linear) return;
  rope->set_low_freq_factor(config->Real("rope_scaling.low_freq_factor", 1));
  rope->set_high_freq_factor(config->Real("rope_scaling.high_freq_factor", 4));
  rope->set_original_context(config->Size("rope_scaling.original_max_position_embeddings"));
}

// Where every sequence lies within it, a window says nothing, unless its layers have a rotary base
// of their own.
void ReadWindow(ConfigReader* config, v1::LlamaSpec* spec) {
  if (!config->Has("sliding_window")) return;
  const bool by_layer =
      config->Is("model_type", "gemma3_text") || config->Is("model_type", "olmo3");
  const int64_t positions = config->Size("sliding_window");
  if (!by_layer) {
    if (positions >= spec->context()) return;
    if (config->Is("model_type", "qwen2") || config->Is("model_type", "qwen3") ||
        config->Is("model_type", "qwen3_moe")) {
      return config->Expected("use_sliding_window", config->At("use_sliding_window"),
                              "false, as a window in some layers of a Qwen is not supported");
    }
    spec->mutable_window()->set_positions(positions);
    return;
  }
  const int64_t full_every = config->Size(kHfFullEvery, 0);
  if (full_every == 1) return;
  v1::AttentionWindowSpec* window = spec->mutable_window();
  window->set_positions(positions);
  if (full_every > 0) window->set_full_every(full_every);
  window->set_rope_theta(config->Real("rope_local_base_freq", 10000));
}

void ReadGemma(ConfigReader* config, v1::LlamaSpec* spec) {
  const bool gemma3 = config->Is("model_type", "gemma3_text");
  if (!gemma3 && !config->Is("model_type", "gemma")) return;
  spec->set_norm_offset(true);
  spec->set_scale_embedding(true);
  spec->set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
  if (!gemma3) return;
  spec->set_post_norms(true);
  spec->set_qk_norm(true);
}

void ReadOlmo(ConfigReader* config, v1::LlamaSpec* spec) {
  if (!config->Is("model_type", "olmo2") && !config->Is("model_type", "olmo3")) return;
  spec->set_wide_qk_norm(true);
  spec->set_pre_norms(false);
  spec->set_post_norms(true);
}

void ReadExperts(ConfigReader* config, v1::LlamaSpec* spec) {
  const bool mixtral = config->Is("model_type", "mixtral");
  if (!mixtral && !config->Is("model_type", "qwen3_moe")) return;
  v1::ExpertsSpec* experts = spec->mutable_experts();
  experts->set_count(config->Size(mixtral ? "num_local_experts" : "num_experts"));
  experts->set_per_token(config->Size("num_experts_per_tok"));
  experts->set_hidden(mixtral ? spec->hidden() : config->Size("moe_intermediate_size"));
  experts->set_normalize(mixtral || config->Flag("norm_topk_prob", false));
  experts->set_balance_loss(config->Real("router_aux_loss_coef", 0.001));
}

void ReadLlama(ConfigReader* config, v1::LlamaSpec* spec) {
  spec->set_layers(config->Size("num_hidden_layers"));
  spec->set_width(config->Size("hidden_size"));
  spec->set_heads(config->Size("num_attention_heads"));
  spec->set_kv_heads(config->Size("num_key_value_heads", spec->heads()));
  const int64_t even = spec->heads() > 0 ? spec->width() / spec->heads() : 0;
  spec->set_head_dim(config->Size("head_dim", even));
  spec->set_hidden(config->Size("intermediate_size"));
  spec->set_context(config->Size("max_position_embeddings"));
  spec->set_vocabulary(config->Size("vocab_size"));
  ReadRope(config, spec);
  ReadWindow(config, spec);
  spec->set_norm_epsilon(config->Real("rms_norm_eps", 1e-6));
  spec->set_tied(config->Flag("tie_word_embeddings", false));
  spec->set_qkv_bias(config->Is("model_type", "qwen2"));
  spec->set_qk_norm(config->Is("model_type", "qwen3") || config->Is("model_type", "qwen3_moe"));
  if (config->Is("hidden_act", "gelu_pytorch_tanh")) {
    spec->set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
  }
  ReadGemma(config, spec);
  ReadOlmo(config, spec);
  ReadExperts(config, spec);
}

void ReadDistilBert(ConfigReader* config, v1::BertSpec* spec) {
  spec->set_layers(config->Size("n_layers", 6));
  spec->set_width(config->Size("dim", 768));
  spec->set_heads(config->Size("n_heads", 12));
  spec->set_hidden(config->Size("hidden_dim", 3072));
  spec->set_context(config->Size("max_position_embeddings", 512));
  spec->set_vocabulary(config->Size("vocab_size", 30522));
  spec->set_segments(0);
  spec->set_norm_epsilon(kDistilBertEpsilon);
}

void ReadBert(ConfigReader* config, v1::BertSpec* spec) {
  if (config->Is("model_type", "distilbert")) return ReadDistilBert(config, spec);
  spec->set_layers(config->Size("num_hidden_layers", 12));
  spec->set_width(config->Size("hidden_size", 768));
  spec->set_heads(config->Size("num_attention_heads", 12));
  spec->set_hidden(config->Size("intermediate_size", 3072));
  spec->set_context(config->Size("max_position_embeddings", 512));
  spec->set_vocabulary(config->Size("vocab_size", 30522));
  spec->set_segments(config->Size("type_vocab_size", 2));
  spec->set_norm_epsilon(config->Real("layer_norm_eps", 1e-12));
}

void ReadResNet(ConfigReader* config, v1::ResNetSpec* spec) {
  const HfJson depths = config->Has("depths") ? config->At("depths") : HfJson::array({3, 4, 6, 3});
  if (!depths.is_array() || depths.size() > kMostStages) {
    return config->Expected("depths", depths, "a list of the stages' layers");
  }
  for (const HfJson& layers : depths) {
    spec->add_stages()->set_layers(config->SizeOf("depths", layers));
  }
  spec->set_bottleneck(!config->Has("layer_type") || config->Is("layer_type", "bottleneck"));
  spec->set_width(config->Size("embedding_size", 64));
  spec->set_classes(config->Size("num_labels", 2));
}

void ReadVit(ConfigReader* config, v1::VitSpec* spec) {
  spec->set_layers(config->Size("num_hidden_layers", 12));
  spec->set_width(config->Size("hidden_size", 768));
  spec->set_heads(config->Size("num_attention_heads", 12));
  spec->set_hidden(config->Size("intermediate_size", 3072));
  spec->set_classes(config->Size("num_labels", 2));
  spec->set_image_size(config->Size("image_size", 224));
  spec->set_patch_size(config->Size("patch_size", 16));
  spec->set_norm_epsilon(config->Real("layer_norm_eps", 1e-12));
}

}  // namespace

absl::StatusOr<v1::ModelSpec> ModelOfHfConfig(absl::string_view config_json) {
  MP_ASSIGN_OR_RETURN(const HfJson config, ParseHfConfig(config_json));
  const auto type = config.find("model_type");
  if (type == config.end()) return absl::InvalidArgumentError("model_type is missing");
  MP_ASSIGN_OR_RETURN(const absl::string_view family, HfFamilyField(*type));
  v1::ModelSpec model;
  ConfigReader reader(config);
  if (family == "model.gpt2") ReadGpt2(&reader, model.mutable_gpt2());
  if (family == "model.llama") ReadLlama(&reader, model.mutable_llama());
  if (family == "model.bert") ReadBert(&reader, model.mutable_bert());
  if (family == "model.resnet") ReadResNet(&reader, model.mutable_resnet());
  if (family == "model.vit") ReadVit(&reader, model.mutable_vit());
  MP_RETURN_IF_ERROR(reader.Problems());
  // What no field of the spec says must be as the family has it.
  MP_RETURN_IF_ERROR(CheckHfConfig(model, config_json));
  return model;
}

absl::StatusOr<v1::ModelSpec> ModelOfHfFolder(const std::string& folder) {
  MP_ASSIGN_OR_RETURN(const std::string text, ReadHfConfig(folder));
  auto model = ModelOfHfConfig(text);
  if (!model.ok()) return Annotate(model.status(), HfConfigPath(folder));
  return model;
}

}  // namespace milepost::models
