// Our models as Hugging Face's: config.json, and the names that weights have there.
//
//   MP_ASSIGN_OR_RETURN(std::string json, models::HfConfig(spec, "float32"));   // export
//   MP_RETURN_IF_ERROR(models::CheckHfConfig(spec, json));                      // import
//   for (const std::string& name : models::HfNames(spec, "transformer.wte.weight")) ...
//
// Parameters already have the names and shapes of the *ForCausalLM (BERT: BertForMaskedLM) state
// dict, where a tied head has no entry, so weights need no table. A family is one function in
// hugging_face.cc: its config's keys, each with the spec's field and value. Only CheckHfFolder
// touches files.
#ifndef MILEPOST_ENGINE_MODELS_HUGGING_FACE_H_
#define MILEPOST_ENGINE_MODELS_HUGGING_FACE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// The text of config.json. `dtype`: of the weights beside it, torch's name ("float32", "bfloat16").
// INVALID_ARGUMENT for a model without a family.
absl::StatusOr<std::string> HfConfig(const v1::ModelSpec& spec, absl::string_view dtype);

// Whether weights with this config are of the spec's model. INVALID_ARGUMENT, a line for each
// difference: the config's key and value, the spec's field and value; also for text that is not a
// JSON object. Keys that only training reads (dropout, initializer_range) are not compared; an
// absent key has transformers' default.
absl::Status CheckHfConfig(const v1::ModelSpec& spec, absl::string_view config_json);

// CheckHfConfig of FOLDER/config.json; errors name the file. NOT_FOUND when there is none.
absl::Status CheckHfFolder(const v1::ModelSpec& spec, const std::string& folder);

// Under which names a parameter may be stored, the likeliest first: with the base model's prefix
// and, as in files of the bare base model, without it.
std::vector<std::string> HfNames(const v1::ModelSpec& spec, absl::string_view parameter);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_HUGGING_FACE_H_
