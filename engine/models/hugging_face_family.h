// How each family's config.json is made and compared, for the sources beside it: its keys, each
// with the spec's field and value.
#ifndef MILEPOST_ENGINE_MODELS_HUGGING_FACE_FAMILY_H_
#define MILEPOST_ENGINE_MODELS_HUGGING_FACE_FAMILY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/models/hugging_face_config.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {

// How a config's value must stand to the spec's.
enum class HfRule : uint8_t {
  kWrite,    // written, never compared: only training reads it
  kEqual,    // equal to the spec's, or to one of `also`
  kAtLeast,  // a number not below the spec's (or the one in `also`), or the spec's value itself
  kAtMost,   // a number not above the spec's
  kRead,     // as kEqual, and not written: some model types alone have it, or another form of it
};

struct HfField {
  const char* key;
  std::string spec_field;  // "model.gpt2.layers"; empty: fixed by the family
  HfJson value;
  HfJson if_absent;  // transformers' default; discarded: the key is required
  HfRule rule = HfRule::kEqual;
  std::vector<HfJson> also = {};
};

struct HfFamily {
  std::string prefix;  // of the base model within the *ForCausalLM one
  std::vector<HfField> fields;
};

// For HfField::if_absent.
inline HfJson HfRequired() { return HfJson(HfJson::value_t::discarded); }

// The prefix of RoBERTa's names where BERT has "bert.".
inline constexpr char kRobertaPrefix[] = "roberta.";

// Of DistilBERT's norms; no config says it.
inline constexpr double kDistilBertEpsilon = 1e-12;

// INVALID_ARGUMENT: transformers has no such model.
absl::StatusOr<HfFamily> HfFamilyOf(const v1::ModelSpec& spec);

// Llama's and its relatives': transformers has each as a type of its own.
absl::StatusOr<HfFamily> HfLlamaFamily(const v1::LlamaSpec& spec);

// What the spec must have for a model_type that it does not have: "model.llama.qk_norm: true".
// Empty: no relative of Llama or BERT.
std::string HfNeeds(const HfJson& model_type);
std::string HfLlamaNeeds(const HfJson& model_type);  // of Llama alone

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_HUGGING_FACE_FAMILY_H_
