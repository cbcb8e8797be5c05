#include "client/cli/hugging_face_model.h"

#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/models/hugging_face.h"
#include "engine/models/peft.h"
#include "engine/state/safetensors.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {
namespace {

bool HasFile(const std::string& folder, absl::string_view name) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(folder, "/", name), error);
}

// Lays the fields that the spec gives over the folder's.
absl::Status LayOver(const v1::ModelSpec& given, v1::ModelSpec* model) {
  const bool other = given.family_case() != v1::ModelSpec::FAMILY_NOT_SET &&
                     given.family_case() != model->family_case();
  if (other) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the folder's model is model.", SizesOf(*model).family, ", and the spec gives ", "model.",
        SizesOf(given).family, ": remove one of them"));
  }
  // A list is given as a whole.
  if (given.resnet().stages_size() > 0) model->mutable_resnet()->clear_stages();
  model->MergeFrom(given);
  model->clear_hugging_face();
  return absl::OkStatus();
}

absl::StatusOr<bool> HasWeights(const std::string& folder) {
  if (HasFile(folder, state::kSafetensorsFile) || HasFile(folder, state::kSafetensorsIndex)) {
    return true;
  }
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5"}) {
    if (!HasFile(folder, name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/", name,
                     " is not read: weights must be in model.safetensors or its shards, as "
                     "transformers' save_pretrained writes them"));
  }
  return false;
}

absl::Status Fill(v1::JobSpec* spec) {
  const std::string folder = spec->model().hugging_face();
  if (folder.empty()) return absl::OkStatus();
  if (HasFile(folder, models::kPeftConfig) && !HasFile(folder, "config.json")) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " holds adapters (", models::kPeftConfig,
                     "), not a model: name the folder of the model that they adapt, or of both "
                     "merged (`milepost checkpoint export --merge`, PEFT's merge_and_unload)"));
  }
  MP_ASSIGN_OR_RETURN(v1::ModelSpec model, models::ModelOfHfFolder(folder));
  MP_RETURN_IF_ERROR(LayOver(spec->model(), &model));
  *spec->mutable_model() = std::move(model);
  if (!spec->train().init_from().empty()) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(const bool weights, HasWeights(folder));
  if (weights) spec->mutable_train()->set_init_from(folder);
  return absl::OkStatus();
}

}  // namespace

SpecFiller HuggingFaceModel() { return {"model.hugging_face", Fill}; }

}  // namespace milepost::client
