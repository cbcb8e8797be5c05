#include "engine/models/hugging_face.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/models/hugging_face_config.h"
#include "engine/models/hugging_face_family.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

bool Fits(const HfField& field, const HfJson& found) {
  if (found == field.value) return true;
  if (field.rule == HfRule::kAtLeast) {
    const HfJson& least = field.also.empty() ? field.value : field.also.front();
    return found.is_number() && found >= least;
  }
  if (field.rule == HfRule::kAtMost) return found.is_number() && found <= field.value;
  for (const HfJson& other : field.also) {
    if (found == other) return true;
  }
  return false;
}

// Of another family than the spec's; empty: it is of the spec's.
std::string OtherFamily(const v1::ModelSpec& spec, const HfJson& config) {
  const auto found = config.find("model_type");
  if (found == config.end()) return "";
  const auto family = HfFamilyField(*found);
  if (!family.ok()) return std::string(family.status().message());
  const std::string own = absl::StrCat("model.", SizesOf(spec).family);
  return *family == own ? ""
                        : absl::StrCat("model_type is ", HfShown(*found), ", which is ", *family,
                                       ", and the spec has ", own);
}

// Empty: it fits.
std::string Difference(const HfField& field, const HfJson& config) {
  if (field.rule == HfRule::kWrite) return "";
  const auto found = config.find(field.key);
  // transformers takes null for what is not given.
  const bool absent = found == config.end() ||
                      (found->is_null() && field.value != nullptr && field.if_absent != nullptr);
  if (absent && field.if_absent.is_discarded()) return absl::StrCat(field.key, " is missing");
  const HfJson& value = absent ? field.if_absent : *found;
  if (Fits(field, value)) return "";
  if (absl::string_view(field.key) == "model_type") {
    const std::string needs = HfNeeds(value);
    if (!needs.empty()) {
      return absl::StrCat("model_type is ", HfShown(value), ", which needs ", needs);
    }
  }
  const absl::string_view least = field.rule == HfRule::kAtLeast  ? "at least "
                                  : field.rule == HfRule::kAtMost ? "at most "
                                                                  : "";
  const HfJson& needed =
      field.rule == HfRule::kAtLeast && !field.also.empty() ? field.also.front() : field.value;
  const std::string wanted =
      field.spec_field.empty() ? absl::StrCat("this model family needs ", least, HfShown(needed))
                               : absl::StrCat(field.spec_field, " needs ", least, HfShown(needed));
  const bool not_given = absent || absl::c_linear_search(config[kHfNotGiven], HfJson(field.key));
  return absl::StrCat(field.key, " is ", HfShown(value), not_given ? " (it is not given)" : "",
                      ", ", wanted);
}

}  // namespace

absl::StatusOr<std::string> HfConfig(const v1::ModelSpec& spec, absl::string_view dtype,
                                     absl::string_view tokens_from) {
  MP_ASSIGN_OR_RETURN(const HfFamily family, HfFamilyOf(spec));
  HfJson config = HfJson::object();
  for (const HfField& field : family.fields) {
    if (field.rule == HfRule::kRead) continue;
    absl::string_view key = field.key;
    if (!absl::ConsumePrefix(&key, "rope_scaling.")) {
      config[field.key] = field.value;
    } else if (!field.value.is_null()) {
      config["rope_scaling"][std::string(key)] = field.value;
    }
  }
  if (!tokens_from.empty()) {
    MP_ASSIGN_OR_RETURN(const HfJson from, ParseHfConfig(tokens_from));
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (from.contains(key)) config[key] = from[key];
    }
  }
  config["torch_dtype"] = std::string(dtype);
  return config.dump(2) + "\n";
}

absl::Status CheckHfConfig(const v1::ModelSpec& spec, absl::string_view config_json) {
  MP_ASSIGN_OR_RETURN(const HfFamily family, HfFamilyOf(spec));
  MP_ASSIGN_OR_RETURN(const HfJson config, ParseHfConfig(config_json));
  // Then nothing else fits either.
  const std::string other = OtherFamily(spec, config);
  if (!other.empty()) return absl::InvalidArgumentError(other);
  std::vector<std::string> differences;
  for (const HfField& field : family.fields) {
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

}  // namespace milepost::models
