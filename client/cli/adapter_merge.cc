#include "client/cli/adapter_merge.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/adapted_base.h"
#include "client/cli/weight_bytes.h"
#include "common/status_macros.h"
#include "engine/models/lora.h"
#include "engine/state/safetensors.h"

namespace milepost::client {
namespace {

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
  Merger(const MergeSettings& settings, const AdaptedBase& base)
      : settings_(settings),
        base_(base),
        scale_(static_cast<float>(models::LoraScale(settings.model.lora()))) {}

  absl::StatusOr<MergeReport> Run(const std::string& folder) {
    MP_ASSIGN_OR_RETURN(adapters_, state::SafetensorsFile::Open(settings_.adapters));
    MP_RETURN_IF_ERROR(FindSources());
    std::vector<state::SafetensorsTensor> tensors;
    for (const Source& source : sources_) {
      tensors.push_back({.name = source.name,
                         .dtype = Name(settings_.dtype),
                         .shape = {source.weight.shape.begin(), source.weight.shape.end()}});
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
    StoredWeight weight;
  };

  absl::Status FindSources() {
    for (const graph::Parameter& parameter : base_.graph().parameters) {
      const graph::Value& value = base_.graph().values[parameter.value];
      if (!models::AdaptedLayer(value.name).empty()) continue;
      const StoredWeight* of_base = base_.Find(value.name);
      if (of_base != nullptr) {
        sources_.push_back({value.name, *of_base});
        continue;
      }
      MP_ASSIGN_OR_RETURN(const auto* trained, Trained(value.name));
      const StoredWeight weight = {
          .shape = value.shape, .file = adapters_, .tensor = {adapters_, trained}};
      MP_RETURN_IF_ERROR(CheckStoredShape(weight));
      sources_.push_back({value.name, weight});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const state::SafetensorsTensor*> Trained(absl::string_view name) const {
    const state::SafetensorsTensor* tensor = adapters_->Find(name);
    if (tensor != nullptr) return tensor;
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint holds no tensor ", name));
  }

  // Of an adapter, whole.
  absl::StatusOr<std::vector<float>> Part(const std::string& name,
                                          const std::vector<int64_t>& shape) const {
    MP_ASSIGN_OR_RETURN(const auto* tensor, Trained(name));
    if (tensor->shape != shape) {
      return absl::DataLossError(
          absl::StrCat("the checkpoint's ", name, " has another shape than the spec's"));
    }
    int64_t elements = 1;
    for (const int64_t dimension : shape) elements *= dimension;
    std::vector<float> values(static_cast<size_t>(elements));
    MP_RETURN_IF_ERROR(adapters_->ReadF32(*tensor, 0, elements, values.data()));
    return values;
  }

  int64_t OutputCount(const StoredWeight& weight) const {
    return base_.outputs_are_columns() ? weight.columns() : weight.rows();
  }

  absl::StatusOr<Adapter> AdapterOf(absl::string_view layer, const StoredWeight& weight) const {
    const std::string down = models::LoraDownName(layer);
    if (adapters_->Find(down) == nullptr) return Adapter{};
    const bool turned = base_.outputs_are_columns();
    const int64_t out = OutputCount(weight), in = turned ? weight.rows() : weight.columns();
    const int64_t rank = settings_.model.lora().rank();
    MP_ASSIGN_OR_RETURN(std::vector<float> a, Part(down, {rank, in}));
    MP_ASSIGN_OR_RETURN(std::vector<float> b, Part(models::LoraUpName(layer), {out, rank}));
    if (!turned) return Adapter{rank, std::move(b), std::move(a)};
    return Adapter{rank, Transposed(a, rank, in), Transposed(b, out, rank)};
  }

  // With `dora`: what each output's weights are multiplied by, once the adapter is added.
  absl::StatusOr<std::vector<float>> FactorsOf(absl::string_view layer, const StoredWeight& weight,
                                               const Adapter& adapter) const {
    if (adapter.rank == 0 || !settings_.model.lora().dora()) return std::vector<float>();
    const int64_t outputs = OutputCount(weight);
    MP_ASSIGN_OR_RETURN(const std::vector<float> change,
                        Part(models::MagnitudeChangeName(layer), {outputs}));
    OutputSquares before(outputs, base_.outputs_are_columns()), after = before;
    MP_RETURN_IF_ERROR(
        ForPieces(weight, [&](int64_t first, int64_t count, std::vector<float>& values) {
          MP_RETURN_IF_ERROR(CheckInterrupt());
          before.Add(first, count, values);
          adapter.AddTo(first, count, weight.columns(), scale_, values.data());
          after.Add(first, count, values);
          return absl::OkStatus();
        }));
    const std::vector<double> was = before.Norms(), is = after.Norms();
    std::vector<float> factors(change.size(), 1.0F);
    for (size_t o = 0; o < factors.size(); ++o) {
      if (is[o] > 0) factors[o] = static_cast<float>((was[o] + change[o]) / is[o]);
    }
    return factors;
  }

  void Multiply(const std::vector<float>& factors, int64_t first_row, int64_t columns,
                std::vector<float>& values) const {
    for (size_t i = 0; !factors.empty() && i < values.size(); ++i) {
      const auto column = static_cast<int64_t>(i) % columns;
      const int64_t row = first_row + static_cast<int64_t>(i) / columns;
      values[i] *= factors[static_cast<size_t>(base_.outputs_are_columns() ? column : row)];
    }
  }

  absl::Status CheckInterrupt() const {
    if (!settings_.interrupted || !settings_.interrupted()) return absl::OkStatus();
    return absl::CancelledError("interrupted: nothing was written");
  }

  absl::Status Write(const Source& source, size_t index, state::SafetensorsWriter& writer) {
    const absl::string_view layer = absl::StripSuffix(source.name, ".weight");
    const StoredWeight& weight = source.weight;
    MP_ASSIGN_OR_RETURN(const Adapter adapter, AdapterOf(layer, weight));
    MP_ASSIGN_OR_RETURN(const std::vector<float> factors, FactorsOf(layer, weight, adapter));
    return ForPieces(weight, [&](int64_t first, int64_t count, std::vector<float>& values) {
      MP_RETURN_IF_ERROR(CheckInterrupt());
      adapter.AddTo(first, count, weight.columns(), scale_, values.data());
      Multiply(factors, first, weight.columns(), values);
      EncodeWeights(values, settings_.dtype, &bytes_);
      return writer.Write(index, first * weight.columns() * ByteSize(settings_.dtype), bytes_);
    });
  }

  const MergeSettings& settings_;
  const AdaptedBase& base_;
  const float scale_;
  std::shared_ptr<const state::SafetensorsFile> adapters_;
  std::vector<Source> sources_;
  std::string bytes_;
};

}  // namespace

absl::StatusOr<MergeReport> MergeAdapters(const MergeSettings& settings,
                                          const std::string& folder) {
  MP_ASSIGN_OR_RETURN(const AdaptedBase base,
                      AdaptedBase::Open(settings.model, settings.base, settings.fingerprint));
  return Merger(settings, base).Run(folder);
}

}  // namespace milepost::client
