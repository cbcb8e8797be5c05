#include "engine/models/hugging_face_config.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/regular_file.h"
#include "common/status_macros.h"

namespace milepost::models {
namespace {

using Json = HfJson;

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxConfigDepth = 32;

// What a config's model_type is here, and whether its weights have other names or shapes.
struct ModelType {
  absl::string_view type;
  absl::string_view field;
  bool converted = false;
};
constexpr ModelType kModelTypes[] = {{"gpt2", "model.gpt2"},
                                     {"llama", "model.llama"},
                                     {"gemma", "model.llama"},
                                     {"gemma3_text", "model.llama"},
                                     {"mistral", "model.llama"},
                                     {"mixtral", "model.llama"},
                                     {"olmo2", "model.llama"},
                                     {"olmo3", "model.llama"},
                                     {"phi3", "model.llama", true},
                                     {"qwen2", "model.llama"},
                                     {"qwen3", "model.llama"},
                                     {"qwen3_moe", "model.llama"},
                                     {"bert", "model.bert"},
                                     {"distilbert", "model.bert"},
                                     {"roberta", "model.bert", true},
                                     {"xlm-roberta", "model.bert", true},
                                     {"camembert", "model.bert", true},
                                     {"resnet", "model.resnet"},
                                     {"vit", "model.vit"}};

// Bounded in size and depth; nlohmann throws, nothing of it leaves this function.
absl::StatusOr<Json> ParseObject(absl::string_view text) {
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("longer than ", kMaxConfigBytes, " bytes: not a model's config"));
  }
  bool deep = false;
  const Json::parser_callback_t bounded = [&deep](int depth, Json::parse_event_t, Json&) {
    deep = deep || depth > kMaxConfigDepth;
    return !deep;
  };
  try {
    Json config = Json::parse(text.begin(), text.end(), bounded);
    if (deep) return absl::InvalidArgumentError("not a model's config: nested too deeply");
    if (!config.is_object()) return absl::InvalidArgumentError("not a JSON object");
    return config;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("not valid JSON: ", error.what()));
  }
}

// Its default vocabulary is one that XLM-RoBERTa and CamemBERT do not share.
void UnifyRoberta(absl::string_view type, Json& config) {
  const Json vocabulary = 50265, positions = 512, padding = 1;  // transformers' defaults
  if (type == "roberta" && !config.contains("vocab_size")) config["vocab_size"] = vocabulary;
  config["roberta.pad_token_id"] =
      config.contains("pad_token_id") ? config["pad_token_id"] : padding;
  Json& rows = config["max_position_embeddings"];
  if (rows.is_null()) rows = positions;
  // What is far out of range is refused as it is.
  const bool sensible = rows.is_number_integer() && rows >= 0 && rows <= (int64_t{1} << 32);
  if (sensible) rows = rows.get<int64_t>() - kRobertaPositions;
}

// Which of `types` are full: every so many-th; 0: none.
Json FullEvery(const Json& types) {
  if (!types.is_array()) return types;
  const Json full = "full_attention";
  size_t every = 0;
  for (size_t i = types.size(); i > 0; --i) {
    if (types[i - 1] == full) every = i;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    const bool is_full = every > 0 && (i + 1) % every == 0;
    if (types[i] != (is_full ? full : Json("sliding_attention"))) return types;
  }
  return every;
}

// Each kind of layer has rotary positions of its own.
void UnifyRopeOfLayers(Json& config) {
  Json rope = config.value("rope_parameters", Json());
  if (rope.is_object() && (rope.contains("full_attention") || rope.contains("sliding_attention"))) {
    const Json local = rope.value("sliding_attention", Json::object());
    const Json full = rope.value("full_attention", Json());
    config["rope_parameters"] = full.is_object() ? full : Json::object();
    if (local.is_object()) {
      if (local.contains("rope_theta")) config["rope_local_base_freq"] = local["rope_theta"];
      const Json type = local.value("rope_type", local.value("type", Json("default")));
      // Refused, as these have no stretching here.
      if (type != Json("default")) {
        config["rope_parameters"]["rope_type"] = {{"sliding_attention", type}};
      }
      const Json share = local.value("partial_rotary_factor", Json(1));
      if (share != Json(1)) config["rope_parameters"]["partial_rotary_factor"] = share;
    }
  }
}

// Gemma 3's and OLMo 3's, whose default is that every so many-th layer is full.
void UnifyLayerTypes(int64_t full_every, int64_t layers_if_absent, Json& config) {
  if (!config.contains("sliding_window")) config["sliding_window"] = 4096;
  const auto types = config.find("layer_types");
  if (types != config.end() && !types->is_null()) {
    config[kHfFullEvery] = FullEvery(*types);
    return;
  }
  Json every = full_every;
  for (const char* key : {"_sliding_window_pattern", "sliding_window_pattern"}) {
    if (config.contains(key)) every = config[key];
  }
  const Json layers = config.value("num_hidden_layers", Json(layers_if_absent));
  const bool beyond = every.is_number() && layers.is_number() && every > layers;
  config[kHfFullEvery] = beyond ? Json(0) : every;
}

// Of the first Gemma transformers read hidden_activation alone, and this where it had none.
void UnifyGemma(Json& config) {
  const Json activation = config.value("hidden_activation", Json());
  if (!activation.is_null()) {
    config["hidden_act"] = activation;
  } else if (config.value("hidden_act", Json("gelu")) == Json("gelu")) {
    config["hidden_act"] = "gelu_pytorch_tanh";
  }
}

// Sizes of Llama's relatives that transformers takes where a key is absent. Where it is null, there
// are as many heads of keys as of queries.
struct LlamaDefaults {
  absl::string_view type;
  int64_t kv_heads;
  int64_t head_dim;  // 0: width / heads
  bool gemma = false;
};
constexpr LlamaDefaults kLlamaDefaults[] = {
    {"mistral", 8, 0},   {"mixtral", 8, 0},        {"qwen3", 32, 128},
    {"qwen3_moe", 4, 0}, {"gemma", 16, 256, true}, {"gemma3_text", 4, 256, true}};

// transformers' later versions write a Qwen3's number of experts under Mixtral's key.
template <typename Set>
void UnifyExperts(bool mixtral, Json& config, const Set& set) {
  if (mixtral) return set("num_local_experts", 8), set("num_experts_per_tok", 2);
  if (config.contains("num_local_experts")) set("num_experts", config["num_local_experts"]);
  set("num_experts", 128);
  set("num_experts_per_tok", 8);
  set("moe_intermediate_size", 768);
}

void UnifyLlama(absl::string_view type, Json& config) {
  config[kHfNotGiven] = Json::array();
  if (type == "llama" || type == "gemma" || type == "olmo2") {
    config.erase("sliding_window");  // which they ignore
  }
  const auto set = [&config](const char* key, const Json& value) {
    if (config.contains(key)) return;
    config[key] = value;
    config[kHfNotGiven].push_back(key);
  };
  if (type == "olmo3") set("rope_theta", 5e5), set("rope_local_base_freq", 5e5);
  if (type == "mixtral") set("rope_theta", 1e6), set("rms_norm_eps", 1e-5);
  if (type == "mixtral" || type == "qwen3_moe") UnifyExperts(type == "mixtral", config, set);
  if (type == "phi3" || type == "olmo2" || type == "olmo3") set("rms_norm_eps", 1e-5);
  for (const LlamaDefaults& defaults : kLlamaDefaults) {
    if (type != defaults.type) continue;
    set("num_key_value_heads", defaults.kv_heads);
    if (defaults.head_dim > 0) set("head_dim", defaults.head_dim);
    if (defaults.gemma) set("tie_word_embeddings", true);
    if (type == "gemma3_text") set("rope_theta", 1e6);
  }
}

Json Unified(Json config) {
  const Json given_type = config.value("model_type", Json());
  const std::string type = given_type.is_string() ? given_type.get<std::string>() : "";
  if (type == "gemma3_text") UnifyRopeOfLayers(config), UnifyLayerTypes(6, 26, config);
  if (type == "olmo3") {
    for (const char* key : {"_sliding_window_pattern", "sliding_window_pattern"}) config.erase(key);
    UnifyRopeOfLayers(config), UnifyLayerTypes(4, 32, config);
  }
  if (type == "gemma" || type == "gemma3_text") UnifyGemma(config);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_object()) continue;
    const Json rope = *found;
    for (const auto& [key, value] : rope.items()) {
      const std::string known = key == "type" ? "rope_type" : key;
      const bool at_top = known == "rope_theta" || known == "partial_rotary_factor";
      config[at_top ? known : absl::StrCat("rope_scaling.", known)] = value;
    }
  }
  if (type == "qwen2" || type == "qwen3" || type == "qwen3_moe") {
    if (config.value("use_sliding_window", Json(false)) == Json(false)) {
      config.erase("sliding_window");
    } else if (!config.contains("sliding_window")) {
      config["sliding_window"] = 4096;
    }
  }
  UnifyLlama(type, config);
  // transformers writes the labels' names alone.
  const auto labels = config.find("id2label");
  if (labels != config.end() && labels->is_object()) config["num_labels"] = labels->size();
  if (type == "mistral" && !config.contains("sliding_window")) config["sliding_window"] = 4096;
  if (type == "roberta" || type == "xlm-roberta" || type == "camembert") UnifyRoberta(type, config);
  return config;
}

}  // namespace

std::string HfConfigPath(const std::string& folder) { return folder + "/config.json"; }

absl::StatusOr<std::string> ReadHfConfig(const std::string& folder) {
  auto text = ReadRegularFile(HfConfigPath(folder), kMaxConfigBytes);
  if (text.ok()) return text;
  return absl::Status(
      text.status().code(),
      absl::StrCat(text.status().message(), "; a folder with config.json and weights is needed"));
}

absl::StatusOr<HfJson> ParseHfConfig(absl::string_view text) {
  MP_ASSIGN_OR_RETURN(Json config, ParseObject(text));
  return Unified(std::move(config));
}

absl::StatusOr<absl::string_view> HfFamilyField(const HfJson& model_type) {
  std::vector<absl::string_view> known;
  for (const ModelType& known_type : kModelTypes) {
    if (model_type == HfJson(std::string(known_type.type))) return known_type.field;
    known.push_back(known_type.type);
  }
  return absl::InvalidArgumentError(absl::StrCat("model_type is ", HfShown(model_type),
                                                 ", which is not supported; there are ",
                                                 absl::StrJoin(known, ", ")));
}

std::string HfShown(const HfJson& value) {
  constexpr size_t kLongest = 100;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

absl::StatusOr<std::string> HfTypeThatIsConverted(const std::string& folder) {
  MP_ASSIGN_OR_RETURN(const std::string text, ReadHfConfig(folder));
  MP_ASSIGN_OR_RETURN(const Json config, ParseHfConfig(text));
  for (const ModelType& known : kModelTypes) {
    const bool is_it = config.value("model_type", Json()) == Json(std::string(known.type));
    if (known.converted && is_it) return std::string(known.type);
  }
  return std::string();
}

}  // namespace milepost::models
