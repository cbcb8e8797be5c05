#include "engine/models/twin_stream.h"

#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {

absl::Status CheckPreference(const v1::ModelSpec& model, const ModelOptions& options) {
  if (!options.preference || options.mode == Mode::kGeneration) return absl::OkStatus();
  if (model.lora().also_train_size() > 0) {
    return absl::InvalidArgumentError(
        "train.dpo: model.lora.also_train would move what the model is compared with");
  }
  if (!options.documents) {
    return absl::InvalidArgumentError(
        "train.dpo: its pairs are documents: give data.document_separator");
  }
  if (model.heads_size() > 0) {
    return absl::InvalidArgumentError("train.dpo: there is no place for model.heads beside it");
  }
  return absl::OkStatus();
}

}  // namespace milepost::models
