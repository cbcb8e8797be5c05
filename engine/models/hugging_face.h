// Our models in Hugging Face's terms: config.json, and the names of weights.
//
//   MP_ASSIGN_OR_RETURN(std::string json, models::HfConfig(spec, "float32"));   // export
//   MP_RETURN_IF_ERROR(models::CheckHfConfig(spec, json));                      // import
//   MP_ASSIGN_OR_RETURN(v1::ModelSpec spec, models::ModelOfHfConfig(json));     // its model
//   for (const models::HfPlace& place : models::HfPlaces(spec, "transformer.wte.weight")) ...
//
// Parameters already have the names and shapes of the state dict of *ForCausalLM (BERT:
// BertForMaskedLM), where a tied head has no entry. So weights need no table. A family is one
// function in hugging_face_family.cc, Llama's with its relatives in hugging_face_llama.cc: its
// config's keys, each with the spec's field and value. Only those with a folder read files.
#ifndef MILEPOST_ENGINE_MODELS_HUGGING_FACE_H_
#define MILEPOST_ENGINE_MODELS_HUGGING_FACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// The text of config.json. `dtype` is torch's name for the weights' type ("float32", "bfloat16").
// INVALID_ARGUMENT: the model has no family.
// `tokens_from`, when given, is the text of another config.json: the new one has its ids of special
// tokens (bos_token_id, eos_token_id, pad_token_id). INVALID_ARGUMENT also: that is no config.
absl::StatusOr<std::string> HfConfig(const v1::ModelSpec& spec, absl::string_view dtype,
                                     absl::string_view tokens_from = {});

// Checks that weights with this config fit the spec's model. INVALID_ARGUMENT has a line for each
// difference: the config's key and value, and the spec's field and value. It is also returned for
// text that is not a JSON object. Keys that only training reads (dropout, initializer_range) are
// not compared. An absent key has transformers' default.
absl::Status CheckHfConfig(const v1::ModelSpec& spec, absl::string_view config_json);

// CheckHfConfig of FOLDER/config.json. Errors name the file. NOT_FOUND: it does not exist.
absl::Status CheckHfFolder(const v1::ModelSpec& spec, const std::string& folder);

// The family and sizes that a config has. ResNet's image_size is not among them, nor is dropout: it
// is 0.
// INVALID_ARGUMENT: the family, or something of the config, is not supported; there is a line for
// each.
absl::StatusOr<v1::ModelSpec> ModelOfHfConfig(absl::string_view config_json);

// ModelOfHfConfig of FOLDER/config.json. Errors name the file. NOT_FOUND: it does not exist.
absl::StatusOr<v1::ModelSpec> ModelOfHfFolder(const std::string& folder);

// The model_type of FOLDER/config.json where its models become ones of another type here, such as
// "phi3", so that adapters made here fit none of its. Empty: it is of another type. Errors are
// those of reading and parsing.
absl::StatusOr<std::string> HfTypeThatIsConverted(const std::string& folder);

// Where weights may have a parameter: a whole tensor, or rows [begin, begin + rows) of one that has
// `of`. Phi-3 keeps several parameters below each other, and RoBERTa has rows for padding before
// the first position's.
struct HfPlace {
  std::string tensor;
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t of = 0;  // 0: it is the tensor
};

// The places of a parameter, in the order in which they are to be looked for. Names are with the
// base model's prefix, and without it, as in files of the bare base model. A parameter with
// kReferencePrefix has the places of the one without.
std::vector<HfPlace> HfPlaces(const v1::ModelSpec& spec, absl::string_view parameter);

// "wte.weight or transformer.wte.weight", for errors.
std::string ShowHfPlaces(const std::vector<HfPlace>& places);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_HUGGING_FACE_H_
