#include "client/cli/adapter_merge.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/weight_bytes.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/data/fingerprint.h"
#include "engine/models/hugging_face.h"
#include "engine/models/lora.h"
#include "engine/models/model.h"
#include "engine/state/resized_tensor.h"
#include "engine/state/safetensors.h"

namespace milepost::client {
namespace {

using Place = state::SafetensorsFolder::Place;

constexpr char kNameIt[] = "the model that was adapted (--base FOLDER names it)";
constexpr int64_t kPieceElements = 1 << 18;

std::vector<float> Transposed(const std::vector<float>& from, int64_t rows, int64_t columns) {
  std::vector<float> to(from.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  }
  return to;
}

// What is added to a weight [rows, columns]: scale left [rows, rank] right [rank, columns].
struct Adapter {
  int64_t rank = 0;  // 0: none
  std::vector<float> left, right;

  void AddTo(int64_t first_row, int64_t rows, int64_t columns, float scale, float* weight) const {
    for (int64_t i = 0; i < rows; ++i) {
      float* const row = weight + i * columns;
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = scale * left[(first_row + i) * rank + k];
        const float* const r = right.data() + k * columns;
        for (int64_t j = 0; j < columns; ++j) row[j] += factor * r[j];
      }
    }
  }
};

class Merger {
 public:
  explicit Merger(const MergeSettings& settings) : settings_(settings) {}

  absl::StatusOr<MergeReport> Run(const std::string& folder) {
    absl::Status found = models::CheckHfFolder(settings_.model, settings_.base);
    if (!found.ok()) return Annotate(found, kNameIt);
    auto base = state::SafetensorsFolder::Open(settings_.base);
    if (!base.ok()) return Annotate(base.status(), kNameIt);
    base_ = *std::move(base);
    MP_ASSIGN_OR_RETURN(adapters_, state::SafetensorsFile::Open(settings_.adapters));
    MP_ASSIGN_OR_RETURN(const graph::Graph graph,
                        models::BuildModel(settings_.model, {.mode = models::Mode::kEvaluation}));
    MP_RETURN_IF_ERROR(FindSources(graph));
    MP_RETURN_IF_ERROR(CheckFingerprint());
    std::vector<state::SafetensorsTensor> tensors;
    for (const Source& source : sources_) {
      tensors.push_back({.name = source.name,
                         .dtype = Name(settings_.dtype),
                         .shape = {source.shape.begin(), source.shape.end()}});
    }
    MP_ASSIGN_OR_RETURN(const auto writer, state::SafetensorsWriter::Create(
                                               folder, tensors, settings_.max_shard_bytes));
    for (size_t i = 0; i < sources_.size(); ++i) {
      MP_RETURN_IF_ERROR(Write(sources_[i], i, *writer));
    }
    MP_RETURN_IF_ERROR(writer->Finish());
    return MergeReport{.tensors = static_cast<int64_t>(sources_.size()),
                       .bytes = writer->bytes(),
                       .files = static_cast<int64_t>(writer->files().size())};
  }

 private:
  struct Source {
    std::string name;
    graph::Shape shape;
    bool base;
    std::shared_ptr<const state::SafetensorsFile> file = nullptr;
    std::shared_ptr<const state::SafetensorsTensor> tensor = nullptr;
    std::optional<state::ResizedTensor> resized = std::nullopt;
  };

  absl::Status FindSources(const graph::Graph& graph) {
    for (const graph::Parameter& parameter : graph.parameters) {
      const graph::Value& value = graph.values[parameter.value];
      if (!models::AdaptedLayer(value.name).empty()) continue;
      Source source = {value.name, value.shape, parameter.base};
      if (parameter.base) {
        MP_RETURN_IF_ERROR(FindInBase(source));
      } else {
        source.file = adapters_;
        MP_ASSIGN_OR_RETURN(const auto* trained, Trained(value.name));
        source.tensor = {adapters_, trained};
      }
      const std::vector<int64_t> shape(source.shape.begin(), source.shape.end());
      const bool words = source.base && shape[0] == SizesOf(settings_.model).vocabulary;
      if (words && state::GrowsTo(source.tensor->shape, shape)) {
        MP_ASSIGN_OR_RETURN(source.resized,
                            state::ResizedTensor::Open(source.file, *source.tensor, shape[0]));
      } else if (shape != source.tensor->shape) {
        return absl::InvalidArgumentError(
            absl::StrCat(source.file->path(), ": tensor ", source.tensor->name, " has the shape [",
                         absl::StrJoin(source.tensor->shape, ", "), "], the model's is [",
                         absl::StrJoin(source.shape, ", "), "]"));
      }
      sources_.push_back(std::move(source));
    }
    return absl::OkStatus();
  }

  absl::Status FindInBase(Source& source) const {
    const std::vector<models::HfPlace> places = models::HfPlaces(settings_.model, source.name);
    for (const models::HfPlace& place : places) {
      const Place* found = base_->Find(place.tensor);
      if (found == nullptr || (place.of > 0 && !found->HasRows(place.of))) continue;
      const Place used = place.of == 0 ? *found : found->Rows(place.begin, place.rows);
      source.file = used.file;
      source.tensor = used.tensor;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(settings_.base, " holds no tensor ", models::ShowHfPlaces(places)));
  }

  absl::StatusOr<const state::SafetensorsTensor*> Trained(absl::string_view name) const {
    const state::SafetensorsTensor* tensor = adapters_->Find(name);
    if (tensor != nullptr) return tensor;
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint holds no tensor ", name));
  }

  absl::Status CheckFingerprint() const {
    std::vector<data::TensorBytes> tensors;
    for (const Source& source : sources_) {
      if (!source.base) continue;
      tensors.push_back({source.name, source.tensor->dtype, source.file->Bytes(*source.tensor)});
    }
    if (settings_.fingerprint == 0 || settings_.fingerprint == data::FingerprintOf(tensors)) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        settings_.base, " holds another model than the one that the checkpoint adapts: name that ",
        "one's folder with --base"));
  }

  absl::StatusOr<std::vector<float>> Whole(const state::SafetensorsTensor& tensor) const {
    std::vector<float> values(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
    MP_RETURN_IF_ERROR(
        adapters_->ReadF32(tensor, 0, static_cast<int64_t>(values.size()), values.data()));
    return values;
  }

  absl::StatusOr<Adapter> AdapterOf(const Source& source) const {
    const absl::string_view layer = absl::StripSuffix(source.name, ".weight");
    const std::string down = models::LoraDownName(layer);
    if (adapters_->Find(down) == nullptr) return Adapter{};
    MP_ASSIGN_OR_RETURN(const auto* a, Trained(down));
    MP_ASSIGN_OR_RETURN(const auto* b, Trained(models::LoraUpName(layer)));
    // GPT-2's weights are [in, out].
    const bool turned = settings_.model.has_gpt2();
    const int64_t in = source.shape[turned ? 0 : 1], out = source.shape[turned ? 1 : 0];
    const int64_t rank = settings_.model.lora().rank();
    if (a->shape != std::vector<int64_t>{rank, in} || b->shape != std::vector<int64_t>{out, rank}) {
      return absl::DataLossError(
          absl::StrCat("the checkpoint's adapters of ", layer, " have other shapes than the spec"));
    }
    MP_ASSIGN_OR_RETURN(std::vector<float> down_values, Whole(*a));
    MP_ASSIGN_OR_RETURN(std::vector<float> up_values, Whole(*b));
    if (!turned) return Adapter{rank, std::move(up_values), std::move(down_values)};
    return Adapter{rank, Transposed(down_values, rank, in), Transposed(up_values, out, rank)};
  }

  static absl::Status Read(const Source& source, int64_t begin, int64_t end, float* values) {
    if (source.resized.has_value()) return source.resized->ReadF32(begin, end, values);
    return source.file->ReadF32(*source.tensor, begin, end, values);
  }

  absl::Status Write(const Source& source, size_t index, state::SafetensorsWriter& writer) {
    MP_ASSIGN_OR_RETURN(const Adapter adapter, AdapterOf(source));
    const int64_t rows = source.shape[0];
    const int64_t columns = graph::Elements(source.shape) / std::max<int64_t>(rows, 1);
    const int64_t piece = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(columns, 1));
    const auto scale = static_cast<float>(models::LoraScale(settings_.model.lora()));
    for (int64_t row = 0; row < rows; row += piece) {
      if (settings_.interrupted && settings_.interrupted()) {
        return absl::CancelledError("interrupted: nothing was written");
      }
      const int64_t count = std::min(piece, rows - row);
      values_.resize(static_cast<size_t>(count * columns));
      MP_RETURN_IF_ERROR(Read(source, row * columns, (row + count) * columns, values_.data()));
      adapter.AddTo(row, count, columns, scale, values_.data());
      EncodeWeights(values_, settings_.dtype, &bytes_);
      MP_RETURN_IF_ERROR(writer.Write(index, row * columns * ByteSize(settings_.dtype), bytes_));
    }
    return absl::OkStatus();
  }

  const MergeSettings& settings_;
  std::shared_ptr<const state::SafetensorsFolder> base_;
  std::shared_ptr<const state::SafetensorsFile> adapters_;
  std::vector<Source> sources_;
  std::vector<float> values_;
  std::string bytes_;
};

}  // namespace

absl::StatusOr<MergeReport> MergeAdapters(const MergeSettings& settings,
                                          const std::string& folder) {
  return Merger(settings).Run(folder);
}

}  // namespace milepost::client
