// The part of hugging_face.h that says where weights have a parameter.
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/models/hugging_face.h"
#include "engine/models/hugging_face_config.h"
#include "engine/models/hugging_face_family.h"
#include "engine/models/model.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

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
  const auto family = HfFamilyOf(spec);
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

}  // namespace

std::vector<HfPlace> HfPlaces(const v1::ModelSpec& spec, absl::string_view parameter) {
  absl::ConsumePrefix(&parameter, kReferencePrefix);
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
