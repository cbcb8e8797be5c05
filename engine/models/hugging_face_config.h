// The text of a config.json, for the sources beside it.
#ifndef MILEPOST_ENGINE_MODELS_HUGGING_FACE_CONFIG_H_
#define MILEPOST_ENGINE_MODELS_HUGGING_FACE_CONFIG_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::models {

using HfJson = nlohmann::ordered_json;

// Which of Gemma 3's and OLMo 3's layers have no window, where they come at regular distances:
// every so many-th; 0: all have one. Else the list of layers' types.
inline constexpr char kHfFullEvery[] = "layer_types.full_every";

// The keys of sizes that were not given, and have transformers' default.
inline constexpr char kHfNotGiven[] = "milepost.not_given";

// Rows of RoBERTa's table of positions before that of the first: of padding, whose token is 1.
inline constexpr int64_t kRobertaPositions = 2;

std::string HfConfigPath(const std::string& folder);

// Reads FOLDER/config.json. Errors name the file; those of reading are ReadRegularFile's.
absl::StatusOr<std::string> ReadHfConfig(const std::string& folder);

// An object in one form for what transformers' versions write differently. rope_scaling's keys are
// at the top as "rope_scaling.factor", wherever they, rope_theta and partial_rotary_factor were. A
// window is there only where it is used. Llama's relatives have the sizes that transformers takes
// where they give none. Gemma 3's and OLMo 3's rotary base of layers with a window is
// "rope_local_base_freq", and kHfFullEvery says which these are. RoBERTa's positions are those that
// a sequence may have. Its padding, which decides where they begin, is "roberta.pad_token_id".
// INVALID_ARGUMENT: no JSON object, longer than 1 MiB or nested too deeply.
absl::StatusOr<HfJson> ParseHfConfig(absl::string_view text);

// The field of ModelSpec, "model.llama", that is a config's model_type. INVALID_ARGUMENT: it is not
// supported; the message has those that are.
absl::StatusOr<absl::string_view> HfFamilyField(const HfJson& model_type);

// As messages show a value: cut where it is long.
std::string HfShown(const HfJson& value);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_HUGGING_FACE_CONFIG_H_
