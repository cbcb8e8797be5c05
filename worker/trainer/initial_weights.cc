#include "worker/trainer/initial_weights.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/data/fingerprint.h"
#include "engine/models/hugging_face.h"
#include "engine/models/lora.h"
#include "engine/runtime/session/fill_interval.h"
#include "engine/state/half.h"
#include "engine/state/layout.h"
#include "engine/state/safetensors.h"

namespace milepost::worker {
namespace {

using Place = state::SafetensorsFolder::Place;

constexpr absl::string_view kParameterKind = "master";

absl::StatusOr<Place> PlaceOf(const state::SafetensorsFolder& weights, const v1::ModelSpec& model,
                              const v1::TensorInfo& tensor) {
  const std::vector<models::HfPlace> places = models::HfPlaces(model, tensor.name());
  for (const models::HfPlace& place : places) {
    const Place* found = weights.Find(place.tensor);
    if (found == nullptr) continue;
    if (place.of == 0) return *found;
    if (found->HasRows(place.of)) return found->Rows(place.begin, place.rows);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(weights.path(), " holds no tensor ", models::ShowHfPlaces(places)));
}

absl::Status CheckShape(const Place& place, const v1::ModelSpec& model,
                        const v1::TensorInfo& tensor) {
  const std::vector<int64_t>& shape = place.tensor->shape;
  const std::vector<int64_t> wanted(tensor.shape().begin(), tensor.shape().end());
  // One row for each token; a larger vocabulary has more.
  const bool words = !wanted.empty() && wanted[0] == SizesOf(model).vocabulary;
  if (shape == wanted || (words && state::GrowsTo(shape, wanted))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      place.file->path(), ": tensor ", place.tensor->name, " has the shape [",
      absl::StrJoin(shape, ", "), "], the model's is [", absl::StrJoin(tensor.shape(), ", "), "]"));
}

// "heads.tag." of "heads.tag.bias"; empty: no further head's.
absl::string_view HeadPrefix(absl::string_view tensor) {
  if (!absl::StartsWith(tensor, "heads.")) return "";
  return tensor.substr(0, tensor.rfind('.') + 1);
}

// Whether the folder has none of a further head or an adapter: it keeps what it was initialised
// with.
bool IsNew(const state::SafetensorsFolder& weights, absl::string_view tensor) {
  if (!models::AdaptedLayer(tensor).empty()) return weights.Find(std::string(tensor)) == nullptr;
  const absl::string_view prefix = HeadPrefix(tensor);
  if (prefix.empty()) return false;
  return weights.Find(absl::StrCat(prefix, "weight")) == nullptr &&
         weights.Find(absl::StrCat(prefix, "bias")) == nullptr;
}

bool IsStatistic(const v1::TensorInfo& tensor) { return tensor.kind() == state::kStatisticKind; }

// A running statistic, whose dtype is the model's own where it counts.
absl::Status ReadCounter(const Place& place, const runtime::StateInterval& target) {
  if (place.tensor->dtype != "I64") {
    return absl::InvalidArgumentError(absl::StrCat("train.init_from: ", place.file->path(),
                                                   ": tensor ", place.tensor->name, " is ",
                                                   place.tensor->dtype, ", expected I64"));
  }
  std::memcpy(target.data, place.file->Bytes(*place.tensor).data() + target.begin * sizeof(int64_t),
              static_cast<size_t>(target.end - target.begin) * sizeof(int64_t));
  return absl::OkStatus();
}

// A model of which one value is no number never gives a loss that is one.
absl::Status CheckNumbers(const Place& place, absl::Span<const float> values) {
  const auto odd = std::find_if_not(values.begin(), values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (odd == values.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "train.init_from: ", place.file->path(), ": tensor ", place.tensor->name, " holds ",
      std::isnan(*odd) ? "NaN" : "infinity", ": begin with weights from before the run diverged"));
}

runtime::ReadElements ReaderOf(const Place& place, const state::ResizedTensor* resized) {
  return [&place, resized](int64_t begin, int64_t end, float* values) {
    MP_RETURN_IF_ERROR(Annotate(resized != nullptr
                                    ? resized->ReadF32(begin, end, values)
                                    : place.file->ReadF32(*place.tensor, begin, end, values),
                                "train.init_from"));
    return CheckNumbers(place, absl::MakeSpan(values, static_cast<size_t>(end - begin)));
  };
}

}  // namespace

absl::StatusOr<InitialWeights> InitialWeights::Open(const std::string& folder,
                                                    const v1::ModelSpec& model,
                                                    const std::vector<v1::TensorInfo>& tensors) {
  MP_RETURN_IF_ERROR(Annotate(models::CheckHfFolder(model, folder), "train.init_from"));
  auto files = state::SafetensorsFolder::Open(folder);
  // A file that is cut short is the user's to mend: it would be so at the next attempt too.
  if (absl::IsDataLoss(files.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.init_from: ", std::string(files.status().message())));
  }
  if (!files.ok()) return Annotate(files.status(), "train.init_from");
  InitialWeights weights;
  weights.files_ = *std::move(files);
  weights.tensors_ = tensors;
  // All of them on every rank: what is missing is found by all, not only by those who need it.
  weights.places_.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].kind() != kParameterKind && !IsStatistic(tensors[i])) continue;
    // Files that are older than torch 0.4.1 do not count batches; the count starts at 0 then.
    const bool counts = IsStatistic(tensors[i]) && tensors[i].dtype() == "I64";
    if (counts && weights.files_->Find(tensors[i].name()) == nullptr) continue;
    if (IsNew(*weights.files_, tensors[i].name())) {
      if (models::AdaptedLayer(tensors[i].name()).empty()) {
        spdlog::info("{} is not in {}: initialised", tensors[i].name(), folder);
      }
      continue;
    }
    auto place = PlaceOf(*weights.files_, model, tensors[i]);
    if (!place.ok()) return Annotate(place.status(), "train.init_from");
    MP_RETURN_IF_ERROR(Annotate(CheckShape(*place, model, tensors[i]), "train.init_from"));
    weights.places_[i] = *std::move(place);
    MP_RETURN_IF_ERROR(weights.Resize(i));
  }
  return weights;
}

absl::Status InitialWeights::Resize(size_t tensor) {
  const Place& place = *places_[tensor];
  const google::protobuf::RepeatedField<int64_t>& shape = tensors_[tensor].shape();
  if (shape.empty() || place.tensor->shape[0] == shape[0]) return absl::OkStatus();
  auto resized = state::ResizedTensor::Open(place.file, *place.tensor, shape[0]);
  if (!resized.ok()) return Annotate(resized.status(), "train.init_from");
  spdlog::info("{} has {} rows in {}: {} more begin as their mean", tensors_[tensor].name(),
               place.tensor->shape[0], files_->path(), shape[0] - place.tensor->shape[0]);
  resized_.emplace(tensor, *std::move(resized));
  return absl::OkStatus();
}

absl::Status InitialWeights::Read(const std::vector<runtime::StateInterval>& targets) const {
  for (const runtime::StateInterval& target : targets) {
    const std::optional<Place>& place = places_[static_cast<size_t>(target.tensor)];
    const v1::TensorInfo& tensor = tensors_[static_cast<size_t>(target.tensor)];
    if (!place.has_value()) continue;
    if (IsStatistic(tensor) && tensor.dtype() == "I64") {
      MP_RETURN_IF_ERROR(ReadCounter(*place, target));
      continue;
    }
    const auto resized = resized_.find(static_cast<size_t>(target.tensor));
    MP_RETURN_IF_ERROR(runtime::FillInterval(
        tensor, target, ReaderOf(*place, resized == resized_.end() ? nullptr : &resized->second)));
  }
  return absl::OkStatus();
}

uint64_t InitialWeights::Fingerprint() const {
  std::vector<data::TensorBytes> tensors;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].has_value()) continue;
    tensors.push_back({tensors_[i].name(), places_[i]->tensor->dtype,
                       places_[i]->file->Bytes(*places_[i]->tensor)});
  }
  return data::FingerprintOf(tensors);
}

absl::Status ReadInitialWeights(const std::string& folder, const v1::ModelSpec& model,
                                const std::vector<v1::TensorInfo>& tensors,
                                const std::vector<runtime::StateInterval>& targets) {
  MP_ASSIGN_OR_RETURN(const InitialWeights weights, InitialWeights::Open(folder, model, tensors));
  return weights.Read(targets);
}

}  // namespace milepost::worker
