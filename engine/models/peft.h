// Adapters in PEFT's terms (Hugging Face's library of adapters): adapter_config.json, and the names
// of adapter_model.safetensors.
//
//   MP_ASSIGN_OR_RETURN(std::string json, models::PeftConfig(spec, "models/Qwen3-0.6B"));
//   models::PeftName("lm_head.weight");   // "base_model.model.lm_head.weight"
#ifndef MILEPOST_ENGINE_MODELS_PEFT_H_
#define MILEPOST_ENGINE_MODELS_PEFT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

inline constexpr absl::string_view kPeftWeights = "adapter_model.safetensors";
inline constexpr absl::string_view kPeftConfig = "adapter_config.json";

// That of transformers (5, where a ViT's layers have other names than in files) behind
// "base_model.model."; of what a magnitude has changed by (lora.h) the magnitude's.
std::string PeftName(absl::string_view parameter);

// The text of adapter_config.json. `base`: the folder of what is adapted. Layers are named by the
// last part of their names, where all layers with it are adapted; otherwise by their whole names.
// INVALID_ARGUMENT: the model has no lora, or cannot be built, or PEFT has no place for what else
// is trained (a bias of an adapted layer, an embedding that is the head too, a ViT's class token).
absl::StatusOr<std::string> PeftConfig(const v1::ModelSpec& model, absl::string_view base);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_PEFT_H_
