#include "engine/models/peft.h"

#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "engine/models/hugging_face_config.h"
#include "engine/models/lora.h"
#include "engine/models/model.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

absl::string_view LastPart(absl::string_view layer) {
  return layer.substr(layer.rfind('.') + 1);  // npos + 1 is 0
}

// What transformers calls a parameter or a layer. Since its version 5 a ViT's modules have other
// names than in its files, and PEFT goes by the modules.
std::string InTransformers(absl::string_view name) {
  if (!absl::StartsWith(name, "vit.encoder.")) return std::string(name);
  return absl::StrReplaceAll(name, {{"vit.encoder.layer.", "vit.layers."},
                                    {".attention.attention.query", ".attention.q_proj"},
                                    {".attention.attention.key", ".attention.k_proj"},
                                    {".attention.attention.value", ".attention.v_proj"},
                                    {".attention.output.dense", ".attention.o_proj"},
                                    {".intermediate.dense", ".mlp.fc1"},
                                    {".output.dense", ".mlp.fc2"}});
}

// "model.norm" of "model.norm.weight".
std::string ModuleOf(absl::string_view parameter) {
  return InTransformers(parameter.substr(0, parameter.rfind('.')));
}

// What a model's parameters are to its adapters.
struct Modules {
  std::set<std::string> adapted;
  std::set<std::string> trained;         // besides, in full
  std::map<std::string, int> with_part;  // layers, by the last part of their names
  std::string bare;                      // a parameter that is trained and no layer's
};

Modules ModulesOf(const graph::Graph& graph) {
  Modules modules;
  for (const graph::Parameter& parameter : graph.parameters) {
    const graph::Value& value = graph.values[parameter.value];
    const absl::string_view adapted = AdaptedLayer(value.name);
    if (!adapted.empty()) {
      modules.adapted.insert(InTransformers(adapted));
      continue;
    }
    const std::string module = ModuleOf(value.name);
    if (!parameter.base) modules.trained.insert(module);
    const absl::string_view part = LastPart(value.name);
    if (!parameter.base && part != "weight" && part != "bias") modules.bare = value.name;
    if (value.shape.size() == 2) ++modules.with_part[std::string(LastPart(module))];
  }
  return modules;
}

// What PEFT's format has no place for.
absl::Status CheckModules(const v1::ModelSpec& model, const Modules& modules) {
  constexpr char kInstead[] = ": PEFT has no place for that; export the model with them (--merge)";
  for (const std::string& layer : modules.trained) {
    if (!modules.adapted.contains(layer)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(layer, " has adapters, and its bias is trained too", kInstead));
  }
  if (!modules.bare.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(modules.bare, " is trained, and is no layer's", kInstead));
  }
  const bool tied = model.has_gpt2() || model.has_bert() || model.llama().tied();
  for (const char* embedding :
       {"transformer.wte", "model.embed_tokens", "bert.embeddings.word_embeddings",
        "distilbert.embeddings.word_embeddings"}) {
    if (!tied || !modules.trained.contains(embedding)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(embedding, " is trained, and is the head too", kInstead));
  }
  return absl::OkStatus();
}

std::set<std::string> Targets(const Modules& modules) {
  std::map<std::string, int> adapted;
  for (const std::string& layer : modules.adapted) ++adapted[std::string(LastPart(layer))];
  std::set<std::string> targets;
  for (const std::string& layer : modules.adapted) {
    std::string part(LastPart(layer));
    const bool all = adapted.at(part) == modules.with_part.at(part);
    targets.insert(all ? std::move(part) : layer);
  }
  return targets;
}

}  // namespace

std::string PeftName(absl::string_view parameter) {
  constexpr absl::string_view kPrefix = "base_model.model.";
  if (!IsMagnitudeChange(parameter)) return absl::StrCat(kPrefix, InTransformers(parameter));
  return absl::StrCat(kPrefix, InTransformers(AdaptedLayer(parameter)), ".lora_magnitude_vector");
}

absl::StatusOr<std::string> PeftConfig(const v1::ModelSpec& model, absl::string_view base) {
  if (!model.has_lora()) return absl::InvalidArgumentError("model.lora: there are no adapters");
  MP_ASSIGN_OR_RETURN(const graph::Graph graph, BuildModel(model, {.mode = Mode::kEvaluation}));
  const Modules modules = ModulesOf(graph);
  MP_RETURN_IF_ERROR(CheckModules(model, modules));
  const v1::LoraSpec& lora = model.lora();
  HfJson config = {
      {"base_model_name_or_path", std::string(base)},
      {"bias", "none"},
      {"fan_in_fan_out", model.has_gpt2()},  // its layers have weights [in, out]
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"lora_alpha", lora.has_alpha() ? lora.alpha() : static_cast<double>(lora.rank())},
      {"lora_dropout", lora.dropout()},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", lora.rank()},
      {"target_modules", Targets(modules)},
      {"task_type", model.has_gpt2() || model.has_llama() ? HfJson("CAUSAL_LM") : HfJson(nullptr)},
      {"use_dora", lora.dora()},
      {"use_rslora", lora.rank_stabilized()},
  };
  if (!modules.trained.empty()) config["modules_to_save"] = modules.trained;
  return config.dump(2) + "\n";
}

}  // namespace milepost::models
