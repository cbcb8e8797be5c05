#include "engine/models/hugging_face.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/models/hugging_face_config.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using Json = HfJson;

constexpr int64_t kGpt2EndOfText = 50256;
constexpr char kRobertaPrefix[] = "roberta.";

// How a config's value must stand to the spec's.
enum class Rule : uint8_t {
  kWrite,    // written, never compared: only training reads it
  kEqual,    // equal to the spec's, or to one of `also`
  kAtLeast,  // a number not below the spec's (or the one in `also`), or the spec's value itself
  kAtMost,   // a number not above the spec's
  kRead,     // as kEqual, and not written: some model types alone have it
};

struct Field {
  const char* key;
  std::string spec_field;  // "model.gpt2.layers"; empty: fixed by the family
  Json value;
  Json if_absent;  // transformers' default; discarded: the key is required
  Rule rule = Rule::kEqual;
  std::vector<Json> also = {};
};

struct Family {
  std::string prefix;  // of the base model within the *ForCausalLM one
  std::vector<Field> fields;
};

// For Field::if_absent.
Json Required() { return Json(Json::value_t::discarded); }

Family Gpt2(const v1::Gpt2Spec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.gpt2.", name); };
  // GPT-2's own end of text, where the vocabulary holds it; no guess at others' tokens.
  const Json end = spec.vocabulary() > kGpt2EndOfText ? Json(kGpt2EndOfText) : Json(nullptr);
  return {
      .prefix = "transformer.",
      .fields = {
          {"architectures", "", Json::array({"GPT2LMHeadModel"}), nullptr, Rule::kWrite},
          {"model_type", "", "gpt2", Required()},
          {"n_layer", field("layers"), spec.layers(), 12},
          {"n_embd", field("width"), spec.width(), 768},
          {"n_head", field("heads"), spec.heads(), 12},
          {"n_positions", field("context"), spec.context(), 1024},
          // A larger one has rows that are new (state/resized_tensor.h).
          {"vocab_size", field("vocabulary"), spec.vocabulary(), 50257, Rule::kAtMost},
          {"n_inner", field("width"), nullptr, nullptr, Rule::kEqual, {4 * spec.width()}},
          {"activation_function", "", "gelu_new", "gelu_new", Rule::kEqual, {"gelu_pytorch_tanh"}},
          {"layer_norm_epsilon", "", 1e-5, 1e-5},
          {"tie_word_embeddings", "", true, true},
          {"scale_attn_weights", "", true, true},
          {"scale_attn_by_inverse_layer_idx", "", false, false},
          {"add_cross_attention", "", false, false},
          {"embd_pdrop", "", spec.dropout(), 0.1, Rule::kWrite},
          {"resid_pdrop", "", spec.dropout(), 0.1, Rule::kWrite},
          {"attn_pdrop", "", 0.0, 0.1, Rule::kWrite},
          {"initializer_range", "", 0.02, 0.02, Rule::kWrite},
          {"bos_token_id", "", end, nullptr, Rule::kWrite},
          {"eos_token_id", "", end, nullptr, Rule::kWrite},
      }};
}

// The fields of rope_scaling, none for plain rotary positions.
void AddRope(const v1::LlamaSpec& spec, std::vector<Field>* fields) {
  const std::string scaling = "model.llama.rope_scaling";
  fields->push_back({"rope_theta", "model.llama.rope_theta", spec.rope_theta(), 10000.0});
  if (!spec.has_rope_scaling()) {
    fields->push_back(
        {"rope_scaling.rope_type", scaling, nullptr, nullptr, Rule::kEqual, {"default"}});
    return;
  }
  const v1::RopeScalingSpec& rope = spec.rope_scaling();
  fields->push_back({"rope_scaling.rope_type", scaling, "llama3", nullptr});
  fields->push_back({"rope_scaling.factor", scaling + ".factor", rope.factor(), Required()});
  fields->push_back({"rope_scaling.low_freq_factor", scaling + ".low_freq_factor",
                     rope.low_freq_factor(), Required()});
  fields->push_back({"rope_scaling.high_freq_factor", scaling + ".high_freq_factor",
                     rope.high_freq_factor(), Required()});
  fields->push_back({"rope_scaling.original_max_position_embeddings", scaling + ".original_context",
                     rope.original_context(), Required()});
}

Family Llama(const v1::LlamaSpec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.llama.", name); };
  const bool qwen2 = spec.qkv_bias();
  const bool qwen3 = spec.qk_norm();
  const bool geglu = spec.activation() == v1::LlamaSpec::ACTIVATION_GEGLU;
  const char* type = qwen2 ? "qwen2" : qwen3 ? "qwen3" : "llama";
  const char* architecture = qwen2   ? "Qwen2ForCausalLM"
                             : qwen3 ? "Qwen3ForCausalLM"
                                     : "LlamaForCausalLM";
  const bool usual_head = spec.head_dim() * spec.heads() == spec.width();
  Family family = {
      .prefix = "model.",
      .fields = {
          {"architectures", "", Json::array({architecture}), nullptr, Rule::kWrite},
          {"model_type", field(qwen3 ? "qk_norm" : "qkv_bias"), type, Required(), Rule::kEqual,
           qwen2 || qwen3 ? std::vector<Json>{} : std::vector<Json>{"mistral", "phi3"}},
          {"num_hidden_layers", field("layers"), spec.layers(), Required()},
          {"hidden_size", field("width"), spec.width(), Required()},
          {"num_attention_heads", field("heads"), spec.heads(), Required()},
          {"num_key_value_heads", field("kv_heads"), spec.kv_heads(), qwen3 ? 32 : spec.heads()},
          {"head_dim",
           field("head_dim"),
           spec.head_dim(),
           qwen3 ? Json(128) : Json(nullptr),
           Rule::kEqual,
           {usual_head ? Json(nullptr) : Json(spec.head_dim())}},
          {"intermediate_size", field("hidden"), spec.hidden(), Required()},
          // No parameter depends on it: another context than the weights were made for is the
          // user's choice.
          {"max_position_embeddings", field("context"), spec.context(), Required(), Rule::kWrite},
          {"sliding_window", field("context"), nullptr, nullptr, Rule::kAtLeast, {spec.context()}},
          {"vocab_size", field("vocabulary"), spec.vocabulary(), Required(), Rule::kAtMost},
          {"rms_norm_eps", field("norm_epsilon"), spec.norm_epsilon(), 1e-6},
          {"tie_word_embeddings", field("tied"), spec.tied(), false},
          {"hidden_act", field("activation"), geglu ? "gelu_pytorch_tanh" : "silu", "silu"},
          {"attention_bias", "", false, false},
          {"mlp_bias", "", false, false},
          {"partial_rotary_factor", "", 1.0, 1.0, Rule::kRead},
          {"attention_dropout", "", 0.0, 0.0, Rule::kWrite},
          {"initializer_range", "", 0.02, 0.02, Rule::kWrite},
          {"bos_token_id", "", nullptr, nullptr, Rule::kWrite},
          {"eos_token_id", "", nullptr, nullptr, Rule::kWrite},
      }};
  AddRope(spec, &family.fields);
  return family;
}

Family Bert(const v1::BertSpec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.bert.", name); };
  return {
      .prefix = "bert.",
      .fields = {
          {"architectures", "", Json::array({"BertForMaskedLM"}), nullptr, Rule::kWrite},
          {"model_type",
           "",
           "bert",
           Required(),
           Rule::kEqual,
           {"camembert", "roberta", "xlm-roberta"}},
          {"num_hidden_layers", field("layers"), spec.layers(), 12},
          {"hidden_size", field("width"), spec.width(), 768},
          {"num_attention_heads", field("heads"), spec.heads(), 12},
          {"intermediate_size", field("hidden"), spec.hidden(), 3072},
          {"max_position_embeddings", field("context"), spec.context(), 512},
          {"type_vocab_size", field("segments"), spec.segments(), 2},
          {"vocab_size", field("vocabulary"), spec.vocabulary(), 30522, Rule::kAtMost},
          {"hidden_act", "", "gelu", "gelu"},
          {"layer_norm_eps", field("norm_epsilon"), spec.norm_epsilon(), 1e-12},
          {"position_embedding_type", "", "absolute", "absolute"},
          {"is_decoder", "", false, false},
          {"tie_word_embeddings", "", true, true},
          {"roberta.pad_token_id", "", kRobertaPositions - 1, kRobertaPositions - 1, Rule::kRead},
          {"hidden_dropout_prob", "", spec.dropout(), 0.1, Rule::kWrite},
          {"attention_probs_dropout_prob", "", 0.0, 0.1, Rule::kWrite},
          {"initializer_range", "", 0.02, 0.02, Rule::kWrite},
      }};
}

Family ResNet(const v1::ResNetSpec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.resnet.", name); };
  Json depths = Json::array(), sizes = Json::array(), names = Json::array({"stem"});
  for (int i = 0; i < spec.stages_size(); ++i) {
    depths.push_back(spec.stages(i).layers());
    sizes.push_back((spec.width() << i) * (spec.bottleneck() ? 4 : 1));
    names.push_back(absl::StrCat("stage", i + 1));
  }
  return {.prefix = "resnet.",
          .fields = {
              {"architectures", "", Json::array({"ResNetForImageClassification"}), nullptr,
               Rule::kWrite},
              {"model_type", "", "resnet", Required()},
              {"num_channels", "", 3, 3},
              {"embedding_size", field("width"), spec.width(), 64},
              {"hidden_sizes", field("width"), sizes, Json::array({256, 512, 1024, 2048})},
              {"depths", field("stages"), depths, Json::array({3, 4, 6, 3})},
              {"layer_type", field("bottleneck"), spec.bottleneck() ? "bottleneck" : "basic",
               "bottleneck"},
              {"hidden_act", "", "relu", "relu"},
              {"downsample_in_first_stage", "", false, false},
              {"downsample_in_bottleneck", "", false, false},
              {"num_labels", field("classes"), spec.classes(), 2},
              {"stage_names", "", names, nullptr, Rule::kWrite},
          }};
}

absl::StatusOr<Family> FamilyOf(const v1::ModelSpec& spec) {
  switch (spec.family_case()) {
    case v1::ModelSpec::kGpt2:
      return Gpt2(spec.gpt2());
    case v1::ModelSpec::kLlama:
      return Llama(spec.llama());
    case v1::ModelSpec::kBert:
      return Bert(spec.bert());
    case v1::ModelSpec::kResnet:
      return ResNet(spec.resnet());
    default:
      return absl::InvalidArgumentError(
          "model: this family has no Hugging Face form; gpt2, llama, bert and resnet have one");
  }
}

bool Fits(const Field& field, const Json& found) {
  if (found == field.value) return true;
  if (field.rule == Rule::kAtLeast) {
    const Json& least = field.also.empty() ? field.value : field.also.front();
    return found.is_number() && found >= least;
  }
  if (field.rule == Rule::kAtMost) return found.is_number() && found <= field.value;
  for (const Json& other : field.also) {
    if (found == other) return true;
  }
  return false;
}

// Of another family than the spec's; empty: it is of the spec's.
std::string OtherFamily(const v1::ModelSpec& spec, const Json& config) {
  const auto found = config.find("model_type");
  if (found == config.end()) return "";
  const auto family = HfFamilyField(*found);
  if (!family.ok()) return std::string(family.status().message());
  const std::string own = absl::StrCat("model.", SizesOf(spec).family);
  return *family == own ? ""
                        : absl::StrCat("model_type is ", HfShown(*found), ", which is ", *family,
                                       ", and the spec has ", own);
}

// The hub's BERTs come from TensorFlow, with its names; RoBERTa has names of its own.
void AddBertNames(absl::string_view parameter, std::vector<std::string>& names) {
  for (const auto& [ours, older] : {std::pair{".LayerNorm.weight", ".LayerNorm.gamma"},
                                    std::pair{".LayerNorm.bias", ".LayerNorm.beta"}}) {
    absl::string_view stem = parameter;
    if (absl::ConsumeSuffix(&stem, ours)) names.push_back(absl::StrCat(stem, older));
  }
  for (const auto& [ours, robertas] :
       {std::pair{"bert.", kRobertaPrefix},
        std::pair{"cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."},
        std::pair{"cls.predictions.transform.", "lm_head."},
        std::pair{"cls.predictions.", "lm_head."}}) {
    absl::string_view rest = parameter;
    if (!absl::ConsumePrefix(&rest, ours)) continue;
    if (!absl::StrContains(rest, "position_embeddings")) {  // RowsOf has these
      names.push_back(absl::StrCat(robertas, rest));
    }
    break;
  }
}

std::vector<std::string> NamesOf(const v1::ModelSpec& spec, absl::string_view parameter) {
  std::vector<std::string> names = {std::string(parameter)};
  const auto family = FamilyOf(spec);
  if (spec.has_bert()) AddBertNames(parameter, names);
  for (size_t i = 0, all = names.size(); family.ok() && i < all; ++i) {
    for (const std::string& prefix : {family->prefix, std::string(kRobertaPrefix)}) {
      if (!absl::StartsWith(names[i], prefix)) continue;
      std::string bare = names[i].substr(prefix.size());
      if (!absl::c_linear_search(names, bare)) names.push_back(std::move(bare));
    }
  }
  return names;
}

// With the parameter's name of the whole tensor; nothing: no supported family has it as rows.
std::optional<HfPlace> RowsOf(const v1::ModelSpec& spec, absl::string_view parameter) {
  if (spec.has_bert() && parameter == "bert.embeddings.position_embeddings.weight") {
    const int64_t context = spec.bert().context();
    return HfPlace{absl::StrCat(kRobertaPrefix, "embeddings.position_embeddings.weight"),
                   kRobertaPositions, context, kRobertaPositions + context};
  }
  if (!spec.has_llama()) return std::nullopt;
  const v1::LlamaSpec& llama = spec.llama();
  const int64_t q = llama.heads() * llama.head_dim(), kv = llama.kv_heads() * llama.head_dim();
  const int64_t hidden = llama.hidden();
  struct Part {
    absl::string_view parameter, tensor;
    int64_t begin, rows, of;
  };
  const Part parts[] = {
      {".self_attn.q_proj.weight", ".self_attn.qkv_proj.weight", 0, q, q + 2 * kv},
      {".self_attn.k_proj.weight", ".self_attn.qkv_proj.weight", q, kv, q + 2 * kv},
      {".self_attn.v_proj.weight", ".self_attn.qkv_proj.weight", q + kv, kv, q + 2 * kv},
      {".mlp.gate_proj.weight", ".mlp.gate_up_proj.weight", 0, hidden, 2 * hidden},
      {".mlp.up_proj.weight", ".mlp.gate_up_proj.weight", hidden, hidden, 2 * hidden}};
  for (const Part& part : parts) {
    absl::string_view stem = parameter;
    if (!absl::ConsumeSuffix(&stem, part.parameter)) continue;
    return HfPlace{absl::StrCat(stem, part.tensor), part.begin, part.rows, part.of};
  }
  return std::nullopt;
}

// Empty: it fits.
std::string Difference(const Field& field, const Json& config) {
  if (field.rule == Rule::kWrite) return "";
  const auto found = config.find(field.key);
  // transformers takes null for what is not given.
  const bool absent = found == config.end() ||
                      (found->is_null() && field.value != nullptr && field.if_absent != nullptr);
  if (absent && field.if_absent.is_discarded()) return absl::StrCat(field.key, " is missing");
  const Json& value = absent ? field.if_absent : *found;
  if (Fits(field, value)) return "";
  if (absl::string_view(field.key) == "model_type" &&
      absl::StartsWith(field.spec_field, "model.llama.")) {
    for (const auto& [type, remedy] : {std::pair("qwen3", "model.llama.qk_norm: true"),
                                       std::pair("qwen2", "model.llama.qkv_bias: true"),
                                       std::pair("llama", "neither qk_norm nor qkv_bias"),
                                       std::pair("mistral", "neither qk_norm nor qkv_bias"),
                                       std::pair("phi3", "neither qk_norm nor qkv_bias")}) {
      if (value == type)
        return absl::StrCat("model_type is ", HfShown(value), ", which needs ", remedy);
    }
  }
  const absl::string_view least = field.rule == Rule::kAtLeast  ? "at least "
                                  : field.rule == Rule::kAtMost ? "at most "
                                                                : "";
  const Json& needed =
      field.rule == Rule::kAtLeast && !field.also.empty() ? field.also.front() : field.value;
  const std::string wanted =
      field.spec_field.empty() ? absl::StrCat("this model family needs ", least, HfShown(needed))
                               : absl::StrCat(field.spec_field, " needs ", least, HfShown(needed));
  return absl::StrCat(field.key, " is ", HfShown(value), absent ? " (it is not given)" : "", ", ",
                      wanted);
}

}  // namespace

absl::StatusOr<std::string> HfConfig(const v1::ModelSpec& spec, absl::string_view dtype,
                                     absl::string_view tokens_from) {
  MP_ASSIGN_OR_RETURN(const Family family, FamilyOf(spec));
  Json config = Json::object();
  for (const Field& field : family.fields) {
    if (field.rule == Rule::kRead) continue;
    absl::string_view key = field.key;
    if (!absl::ConsumePrefix(&key, "rope_scaling.")) {
      config[field.key] = field.value;
    } else if (!field.value.is_null()) {
      config["rope_scaling"][std::string(key)] = field.value;
    }
  }
  if (!tokens_from.empty()) {
    MP_ASSIGN_OR_RETURN(const Json from, ParseHfConfig(tokens_from));
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (from.contains(key)) config[key] = from[key];
    }
  }
  config["torch_dtype"] = std::string(dtype);
  return config.dump(2) + "\n";
}

absl::Status CheckHfConfig(const v1::ModelSpec& spec, absl::string_view config_json) {
  MP_ASSIGN_OR_RETURN(const Family family, FamilyOf(spec));
  MP_ASSIGN_OR_RETURN(const Json config, ParseHfConfig(config_json));
  // Then nothing else fits either.
  const std::string other = OtherFamily(spec, config);
  if (!other.empty()) return absl::InvalidArgumentError(other);
  std::vector<std::string> differences;
  for (const Field& field : family.fields) {
    std::string difference = Difference(field, config);
    if (!difference.empty()) differences.push_back(std::move(difference));
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(differences, "\n"));
}

absl::Status CheckHfFolder(const v1::ModelSpec& spec, const std::string& folder) {
  MP_ASSIGN_OR_RETURN(const std::string text, ReadHfConfig(folder));
  return Annotate(CheckHfConfig(spec, text), HfConfigPath(folder));
}

std::vector<HfPlace> HfPlaces(const v1::ModelSpec& spec, absl::string_view parameter) {
  std::vector<HfPlace> places;
  if (const auto rows = RowsOf(spec, parameter); rows.has_value()) {
    for (std::string& name : NamesOf(spec, rows->tensor)) {
      places.push_back({std::move(name), rows->begin, rows->rows, rows->of});
    }
  }
  for (std::string& name : NamesOf(spec, parameter)) places.push_back({std::move(name)});
  return places;
}

std::string ShowHfPlaces(const std::vector<HfPlace>& places) {
  std::vector<std::string> shown;
  for (const HfPlace& place : places) {
    const bool whole = place.of == 0;
    shown.push_back(whole ? place.tensor : absl::StrCat(place.tensor, " of ", place.of, " rows"));
  }
  return absl::StrJoin(shown, " or ");
}

}  // namespace milepost::models
