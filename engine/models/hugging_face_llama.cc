// Llama's relatives as transformers has them: a type of model for each way in which the spec may
// differ from Llama.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/models/hugging_face_family.h"

namespace milepost::models {
namespace {

std::string InSpec(absl::string_view name) { return absl::StrCat("model.llama.", name); }

// What makes a spec one of a type.
struct Traits {
  bool qkv_bias = false;
  bool qk_norm = false;
  bool wide_qk_norm = false;
  bool norm_offset = false;
  bool no_pre_norms = false;
  bool post_norms = false;
  bool scale_embedding = false;
  bool window = false;       // in some layer
  bool full_layers = false;  // and not in others
  bool geglu = false;
  bool experts = false;

  friend bool operator==(const Traits&, const Traits&) = default;
};

Traits TraitsOf(const v1::LlamaSpec& spec) {
  return {.qkv_bias = spec.qkv_bias(),
          .qk_norm = spec.qk_norm(),
          .wide_qk_norm = spec.wide_qk_norm(),
          .norm_offset = spec.norm_offset(),
          .no_pre_norms = spec.has_pre_norms() && !spec.pre_norms(),
          .post_norms = spec.post_norms(),
          .scale_embedding = spec.scale_embedding(),
          .window = spec.has_window(),
          .full_layers = spec.window().full_every() > 0 || spec.window().has_rope_theta(),
          .geglu = spec.activation() == v1::LlamaSpec::ACTIVATION_GEGLU,
          .experts = spec.has_experts()};
}

struct Type {
  const char* name;
  const char* architecture;
  const char* needs;  // of the spec
  Traits traits;
};

constexpr char kPlain[] =
    "none of qk_norm, wide_qk_norm, qkv_bias, norm_offset, post_norms, scale_embedding and experts";
constexpr Type kTypes[] = {
    {"llama", "LlamaForCausalLM", kPlain, {}},
    {"mistral", "MistralForCausalLM", kPlain, {.window = true}},
    {"qwen2",
     "Qwen2ForCausalLM",
     "model.llama.qkv_bias: true, and nothing of Gemma's",
     {.qkv_bias = true}},
    {"qwen3",
     "Qwen3ForCausalLM",
     "model.llama.qk_norm: true, no experts, and nothing of Gemma's",
     {.qk_norm = true}},
    {"mixtral", "MixtralForCausalLM", "model.llama.experts, and no qk_norm", {.experts = true}},
    {"qwen3_moe",
     "Qwen3MoeForCausalLM",
     "model.llama.experts, and qk_norm: true",
     {.qk_norm = true, .experts = true}},
    {"olmo2",
     "Olmo2ForCausalLM",
     "wide_qk_norm, post_norms, pre_norms: false, and no window",
     {.wide_qk_norm = true, .no_pre_norms = true, .post_norms = true}},
    {"olmo3",
     "Olmo3ForCausalLM",
     "wide_qk_norm, post_norms, pre_norms: false, and a window",
     {.wide_qk_norm = true, .no_pre_norms = true, .post_norms = true, .window = true}},
    {"gemma",
     "GemmaForCausalLM",
     "norm_offset, scale_embedding, activation: geglu, and neither qk_norm nor post_norms",
     {.norm_offset = true, .scale_embedding = true, .geglu = true}},
    {"gemma3_text",
     "Gemma3ForCausalLM",
     "norm_offset, post_norms, scale_embedding, qk_norm and activation: geglu",
     {.qk_norm = true,
      .norm_offset = true,
      .post_norms = true,
      .scale_embedding = true,
      .geglu = true}}};

bool IsGemma(const Type& type) { return type.traits.norm_offset; }
bool IsGemma3(const Type& type) { return IsGemma(type) && type.traits.post_norms; }
bool IsOlmo(const Type& type) { return type.traits.wide_qk_norm; }
bool IsOlmo3(const Type& type) { return IsOlmo(type) && type.traits.window; }
bool IsMixtral(const Type& type) { return type.traits.experts && !type.traits.qk_norm; }

const Type* TypeOf(const v1::LlamaSpec& spec) {
  const Traits has = TraitsOf(spec);
  for (const Type& type : kTypes) {
    Traits wanted = type.traits;
    // Of Gemma 3 and OLMo 3 any layers may have the window, of Mixtral all; transformers' Llama and
    // its likes take any gate.
    if (IsGemma3(type) || IsMixtral(type)) wanted.window = has.window;
    if (IsGemma3(type) || IsOlmo3(type)) wanted.full_layers = has.full_layers;
    if (!IsGemma(type)) wanted.geglu = has.geglu;
    if (wanted == has) return &type;
  }
  return nullptr;
}

// The fields of rope_scaling, none for plain rotary positions.
void AddRope(const v1::LlamaSpec& spec, std::vector<HfField>* fields) {
  const std::string scaling = InSpec("rope_scaling");
  static constexpr char kType[] = "rope_scaling.rope_type";  // fields point to it
  fields->push_back({"rope_theta", InSpec("rope_theta"), spec.rope_theta(), 10000.0});
  if (!spec.has_rope_scaling()) {
    fields->push_back({kType, scaling, nullptr, nullptr, HfRule::kEqual, {"default"}});
    return;
  }
  const v1::RopeScalingSpec& rope = spec.rope_scaling();
  const bool linear = rope.type() == v1::RopeScalingSpec::TYPE_LINEAR;
  fields->push_back(
      {kType, linear ? scaling + ".type" : scaling, linear ? "linear" : "llama3", nullptr});
  fields->push_back({"rope_scaling.factor", scaling + ".factor", rope.factor(), HfRequired()});
  if (linear) return;
  fields->push_back({"rope_scaling.low_freq_factor", scaling + ".low_freq_factor",
                     rope.low_freq_factor(), HfRequired()});
  fields->push_back({"rope_scaling.high_freq_factor", scaling + ".high_freq_factor",
                     rope.high_freq_factor(), HfRequired()});
  fields->push_back({"rope_scaling.original_max_position_embeddings", scaling + ".original_context",
                     rope.original_context(), HfRequired()});
}

void AddExperts(const v1::LlamaSpec& spec, const Type& type, std::vector<HfField>* fields) {
  const v1::ExpertsSpec& experts = spec.experts();
  const char* count = IsMixtral(type) ? "num_local_experts" : "num_experts";
  fields->push_back({count, InSpec("experts.count"), experts.count(), HfRequired()});
  fields->push_back(
      {"num_experts_per_tok", InSpec("experts.per_token"), experts.per_token(), HfRequired()});
  fields->push_back({"router_aux_loss_coef", "", experts.balance_loss(), 0.001, HfRule::kWrite});
  if (IsMixtral(type)) {
    fields->push_back(
        {"intermediate_size", InSpec("experts.hidden"), experts.hidden(), HfRequired()});
    fields->push_back({"router_jitter_noise", "", 0.0, 0.0, HfRule::kWrite});
    return;
  }
  // That of layers without experts, of which there are none.
  fields->push_back({"intermediate_size", "", spec.hidden(), nullptr, HfRule::kWrite});
  fields->push_back(
      {"moe_intermediate_size", InSpec("experts.hidden"), experts.hidden(), HfRequired()});
  fields->push_back({"norm_topk_prob", InSpec("experts.normalize"), experts.normalize(), false});
  fields->push_back({"decoder_sparse_step", "", 1, 1});
  fields->push_back({"mlp_only_layers", "", HfJson::array(), HfJson::array()});
}

void AddSizes(const v1::LlamaSpec& spec, std::vector<HfField>* fields) {
  const int64_t even = spec.heads() > 0 ? spec.width() / spec.heads() : 0;
  const HfField sizes[] = {
      {"num_hidden_layers", InSpec("layers"), spec.layers(), HfRequired()},
      {"hidden_size", InSpec("width"), spec.width(), HfRequired()},
      {"num_attention_heads", InSpec("heads"), spec.heads(), HfRequired()},
      {"num_key_value_heads", InSpec("kv_heads"), spec.kv_heads(), spec.heads()},
      {"head_dim", InSpec("head_dim"), spec.head_dim(), even},
      // No parameter depends on it: another context than the weights were made for is the user's
      // choice.
      {"max_position_embeddings", InSpec("context"), spec.context(), HfRequired(), HfRule::kWrite},
      // A larger one has rows that are new (state/resized_tensor.h).
      {"vocab_size", InSpec("vocabulary"), spec.vocabulary(), HfRequired(), HfRule::kAtMost},
      {"rms_norm_eps", InSpec("norm_epsilon"), spec.norm_epsilon(), 1e-6},
      {"tie_word_embeddings", InSpec("tied"), spec.tied(), false}};
  fields->insert(fields->end(), std::begin(sizes), std::end(sizes));
}

HfJson LayerTypes(const v1::LlamaSpec& spec) {
  const int64_t period = spec.window().full_every();
  HfJson types = HfJson::array();
  for (int64_t layer = 1; layer <= spec.layers(); ++layer) {
    const bool full = !spec.has_window() || (period > 0 && layer % period == 0);
    types.push_back(full ? "full_attention" : "sliding_attention");
  }
  return types;
}

// The rotary base of layers with a window.
double LocalTheta(const v1::LlamaSpec& spec) {
  return spec.window().has_rope_theta() ? spec.window().rope_theta() : spec.rope_theta();
}

void AddWindow(const v1::LlamaSpec& spec, const Type& type, std::vector<HfField>* fields) {
  const v1::AttentionWindowSpec& window = spec.window();
  if (IsOlmo(type) && !spec.has_window()) {  // as is an OLMo 3 whose layers are all full
    fields->push_back({kHfFullEvery, InSpec("window.full_every"), 1, 1, HfRule::kRead});
    return;
  }
  // A window that no sequence leaves makes no difference.
  if (!spec.has_window() && IsGemma3(type)) {
    fields->push_back({"sliding_window", "", spec.context(), nullptr, HfRule::kWrite});
  } else if (!spec.has_window()) {
    fields->push_back({"sliding_window",
                       InSpec("context"),
                       nullptr,
                       nullptr,
                       HfRule::kAtLeast,
                       {spec.context()}});
  } else {
    fields->push_back({"sliding_window", InSpec("window.positions"), window.positions(), nullptr});
  }
  if (!IsGemma3(type) && !IsOlmo3(type)) return;
  const int64_t period = window.full_every() > spec.layers() ? 0 : window.full_every();
  const HfJson every = spec.has_window() ? period : 1;
  fields->push_back({"layer_types", "", LayerTypes(spec), nullptr, HfRule::kWrite});
  fields->push_back(
      {kHfFullEvery, InSpec("window.full_every"), every, HfRequired(), HfRule::kRead});
  if (!spec.has_window()) return;
  fields->push_back({"rope_local_base_freq", InSpec("window.rope_theta"), LocalTheta(spec), 10000.0,
                     IsGemma3(type) ? HfRule::kEqual : HfRule::kRead});
}

// OLMo 3 has them by the layers' types.
void AddRopeOfLayers(const v1::LlamaSpec& spec, std::vector<HfField>* fields) {
  HfJson full = {{"rope_type", "default"}, {"rope_theta", spec.rope_theta()}};
  for (const HfField& field : *fields) {
    absl::string_view key = field.key;
    if (!absl::ConsumePrefix(&key, "rope_scaling.") || field.value.is_null()) continue;
    full[std::string(key)] = field.value;
  }
  const HfJson local = {{"rope_type", "default"}, {"rope_theta", LocalTheta(spec)}};
  const HfJson both = {{"full_attention", full}, {"sliding_attention", local}};
  fields->push_back({"rope_parameters", "", both, nullptr, HfRule::kWrite});
}

void AddGemma(const v1::LlamaSpec& spec, const Type& type, std::vector<HfField>* fields) {
  // Beside hidden_act: transformers' versions read one or the other.
  fields->push_back({"hidden_activation", "", "gelu_pytorch_tanh", "gelu_pytorch_tanh"});
  const HfJson no = false, null = nullptr;
  fields->push_back({"use_bidirectional_attention", "", no, no, HfRule::kEqual, {null}});
  if (!IsGemma3(type)) return;
  fields->push_back({"query_pre_attn_scalar", InSpec("head_dim"), spec.head_dim(), 256});
  fields->push_back({"attn_logit_softcapping", "", nullptr, nullptr});
  fields->push_back({"final_logit_softcapping", "", nullptr, nullptr});
}

}  // namespace

absl::StatusOr<HfFamily> HfLlamaFamily(const v1::LlamaSpec& spec) {
  const Type* type = TypeOf(spec);
  if (type == nullptr) {
    std::vector<std::string> known;
    for (const Type& each : kTypes) known.push_back(each.name);
    return absl::InvalidArgumentError(absl::StrCat(
        "model.llama: transformers has no model with this choice of qkv_bias, qk_norm, window, ",
        "norm_offset, pre_norms, post_norms, wide_qk_norm, scale_embedding, activation and ",
        "experts; there are ", absl::StrJoin(known, ", ")));
  }
  if ((IsGemma3(*type) || IsOlmo3(*type)) && spec.has_window() && spec.has_rope_scaling() &&
      !spec.window().has_rope_theta()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.llama.window.rope_theta: give it, as transformers' ", type->name,
                     " has no rope_scaling in layers with a window"));
  }
  if (IsMixtral(*type) && !spec.experts().normalize()) {
    return absl::InvalidArgumentError(
        "model.llama.experts.normalize: transformers' Mixtral always does; one of Qwen3's, which "
        "need not, has qk_norm");
  }
  HfFamily family{.prefix = "model."};
  std::vector<HfField>& fields = family.fields;
  const bool geglu = spec.activation() == v1::LlamaSpec::ACTIVATION_GEGLU;
  // A window that no sequence leaves may be left out: such a folder has one of these types, too.
  const bool plain = !type->traits.qkv_bias && !type->traits.qk_norm && !type->traits.experts &&
                     !IsGemma(*type) && !IsOlmo(*type);
  std::vector<HfJson> also;
  if (plain) also = {"llama", "mistral", "phi3"};
  if (IsOlmo(*type) && !IsOlmo3(*type)) also = {"olmo3"};
  fields = {{"architectures", "", HfJson::array({type->architecture}), nullptr, HfRule::kWrite},
            {"model_type",
             InSpec(type->traits.experts   ? "experts"
                    : type->traits.qk_norm ? "qk_norm"
                                           : "qkv_bias"),
             type->name, HfRequired(), HfRule::kEqual, also}};
  AddSizes(spec, &fields);
  if (spec.has_experts()) {
    AddExperts(spec, *type, &fields);
  } else {
    fields.push_back({"intermediate_size", InSpec("hidden"), spec.hidden(), HfRequired()});
  }
  AddWindow(spec, *type, &fields);
  if (IsGemma(*type)) AddGemma(spec, *type, &fields);
  if (IsGemma(*type) || IsOlmo(*type)) {
    // transformers' default is token 0 or 1, and PyTorch does not train the row of padding.
    fields.push_back({"pad_token_id", "", nullptr, nullptr, HfRule::kWrite});
  }
  const HfField fixed[] = {
      {"hidden_act", InSpec("activation"), geglu ? "gelu_pytorch_tanh" : "silu",
       IsGemma(*type) ? "gelu_pytorch_tanh" : "silu"},
      {"attention_bias", "", false, false},
      {"mlp_bias", "", false, false},
      {"partial_rotary_factor", "", 1.0, 1.0, HfRule::kRead},
      {"attention_dropout", "", 0.0, 0.0, HfRule::kWrite},
      {"initializer_range", "", 0.02, 0.02, HfRule::kWrite},
      {"bos_token_id", "", nullptr, nullptr, HfRule::kWrite},
      {"eos_token_id", "", nullptr, nullptr, HfRule::kWrite}};
  fields.insert(fields.end(), std::begin(fixed), std::end(fixed));
  AddRope(spec, &fields);
  if (IsOlmo3(*type)) AddRopeOfLayers(spec, &fields);
  return family;
}

std::string HfLlamaNeeds(const HfJson& model_type) {
  if (model_type == HfJson("phi3")) return kTypes[0].needs;
  for (const Type& type : kTypes) {
    if (model_type == HfJson(type.name)) return type.needs;
  }
  return "";
}

}  // namespace milepost::models
