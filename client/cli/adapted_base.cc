#include "client/cli/adapted_base.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/data/fingerprint.h"
#include "engine/models/hugging_face.h"
#include "engine/models/lora.h"
#include "engine/models/model.h"

namespace milepost::client {
namespace {

constexpr char kNameIt[] = "the model that was adapted (--base FOLDER names it)";
constexpr int64_t kPieceElements = 1 << 18;

absl::StatusOr<StoredWeight> Stored(const v1::ModelSpec& model,
                                    const state::SafetensorsFolder& files, const std::string& name,
                                    const graph::Shape& shape) {
  const std::vector<models::HfPlace> places = models::HfPlaces(model, name);
  for (const models::HfPlace& place : places) {
    const auto* found = files.Find(place.tensor);
    if (found == nullptr || (place.of > 0 && !found->HasRows(place.of))) continue;
    const auto used = place.of == 0 ? *found : found->Rows(place.begin, place.rows);
    return StoredWeight{.shape = shape, .file = used.file, .tensor = used.tensor};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(files.path(), " holds no tensor ", models::ShowHfPlaces(places)));
}

}  // namespace

int64_t StoredWeight::columns() const {
  return graph::Elements(shape) / std::max<int64_t>(rows(), 1);
}

absl::Status StoredWeight::ReadF32(int64_t begin, int64_t end, float* values) const {
  if (resized.has_value()) return resized->ReadF32(begin, end, values);
  return file->ReadF32(*tensor, begin, end, values);
}

absl::Status CheckStoredShape(const StoredWeight& weight) {
  const std::vector<int64_t> shape(weight.shape.begin(), weight.shape.end());
  if (shape == weight.tensor->shape) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(weight.file->path(), ": tensor ", weight.tensor->name, " has the shape [",
                   absl::StrJoin(weight.tensor->shape, ", "), "], the model's is [",
                   absl::StrJoin(shape, ", "), "]"));
}

absl::Status ForPieces(const StoredWeight& weight, const OnRows& on_rows) {
  const int64_t columns = weight.columns();
  const int64_t piece = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(columns, 1));
  std::vector<float> values;
  for (int64_t row = 0; row < weight.rows(); row += piece) {
    const int64_t count = std::min(piece, weight.rows() - row);
    values.resize(static_cast<size_t>(count * columns));
    MP_RETURN_IF_ERROR(weight.ReadF32(row * columns, (row + count) * columns, values.data()));
    MP_RETURN_IF_ERROR(on_rows(row, count, values));
  }
  return absl::OkStatus();
}

void OutputSquares::Add(int64_t first_row, int64_t rows, const std::vector<float>& values) {
  const size_t columns = values.size() / static_cast<size_t>(rows);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t output = columns_ ? i % columns : static_cast<size_t>(first_row) + i / columns;
    sums_[output] += double{values[i]} * values[i];
  }
}

std::vector<double> OutputSquares::Norms() const {
  std::vector<double> norms = sums_;
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

absl::StatusOr<AdaptedBase> AdaptedBase::Open(const v1::ModelSpec& model, const std::string& folder,
                                              uint64_t fingerprint) {
  MP_RETURN_IF_ERROR(Annotate(models::CheckHfFolder(model, folder), kNameIt));
  auto files = state::SafetensorsFolder::Open(folder);
  if (!files.ok()) return Annotate(files.status(), kNameIt);
  AdaptedBase base;
  MP_ASSIGN_OR_RETURN(base.graph_, models::BuildModel(model, {.mode = models::Mode::kEvaluation}));
  base.outputs_are_columns_ = model.has_gpt2();
  MP_RETURN_IF_ERROR(base.FindWeights(model, **files));
  MP_RETURN_IF_ERROR(base.CheckFingerprint(folder, fingerprint));
  return base;
}

absl::Status AdaptedBase::FindWeights(const v1::ModelSpec& model,
                                      const state::SafetensorsFolder& files) {
  for (const graph::Parameter& parameter : graph_.parameters) {
    if (!parameter.base) continue;
    const graph::Value& value = graph_.values[parameter.value];
    MP_ASSIGN_OR_RETURN(StoredWeight weight, Stored(model, files, value.name, value.shape));
    const std::vector<int64_t> shape(value.shape.begin(), value.shape.end());
    const bool words = shape[0] == SizesOf(model).vocabulary;
    if (words && state::GrowsTo(weight.tensor->shape, shape)) {
      MP_ASSIGN_OR_RETURN(weight.resized,
                          state::ResizedTensor::Open(weight.file, *weight.tensor, shape[0]));
    } else {
      MP_RETURN_IF_ERROR(CheckStoredShape(weight));
    }
    weights_.emplace(value.name, std::move(weight));
  }
  return absl::OkStatus();
}

absl::Status AdaptedBase::CheckFingerprint(const std::string& folder, uint64_t fingerprint) const {
  if (fingerprint == 0) return absl::OkStatus();
  std::vector<data::TensorBytes> tensors;
  for (const graph::Parameter& parameter : graph_.parameters) {
    const std::string& name = graph_.values[parameter.value].name;
    const StoredWeight* weight = Find(name);
    if (weight == nullptr) continue;
    tensors.push_back({name, weight->tensor->dtype, weight->file->Bytes(*weight->tensor)});
  }
  if (fingerprint == data::FingerprintOf(tensors)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      folder, " holds another model than the one that the checkpoint adapts: name that one's ",
      "folder with --base"));
}

const StoredWeight* AdaptedBase::Find(absl::string_view name) const {
  const auto found = weights_.find(name);
  return found == weights_.end() ? nullptr : &found->second;
}

absl::StatusOr<std::vector<double>> AdaptedBase::Norms(absl::string_view layer) const {
  const StoredWeight* weight = Find(absl::StrCat(layer, ".weight"));
  if (weight == nullptr || weight->shape.size() != 2) {
    return absl::DataLossError(absl::StrCat("the checkpoint has magnitudes of ", layer,
                                            ", which is no layer that its model adapts"));
  }
  OutputSquares squares(outputs_are_columns_ ? weight->columns() : weight->rows(),
                        outputs_are_columns_);
  MP_RETURN_IF_ERROR(
      ForPieces(*weight, [&](int64_t first, int64_t count, std::vector<float>& values) {
        squares.Add(first, count, values);
        return absl::OkStatus();
      }));
  return squares.Norms();
}

}  // namespace milepost::client
