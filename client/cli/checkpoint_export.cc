#include "client/cli/checkpoint_export.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/adapted_base.h"
#include "client/cli/adapter_merge.h"
#include "client/cli/new_folder.h"
#include "client/cli/tokenizer_folder.h"
#include "client/cli/weight_bytes.h"
#include "common/checksum.h"
#include "common/regular_file.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"
#include "engine/models/hugging_face.h"
#include "engine/models/lora.h"
#include "engine/models/peft.h"
#include "engine/state/layout.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {
namespace {

constexpr absl::string_view kParameterKind = "master";
// Of checkpoints that a script saved (python/milepost/checkpoint.py): JSON texts.
constexpr absl::string_view kStructureKind = "structure";
constexpr absl::string_view kRankStructureKind = "rank_structure";
constexpr int64_t kMostTextBytes = 256 << 20;
constexpr size_t kMostConfigBytes = 1 << 20;

bool IsStructure(const v1::TensorInfo& tensor) {
  return tensor.kind() == kStructureKind || tensor.kind() == kRankStructureKind;
}

bool IsOfScript(const v1::CheckpointManifest& manifest) {
  return std::any_of(manifest.tensors().begin(), manifest.tensors().end(), IsStructure);
}

// Their names.
absl::StatusOr<std::string> WriteFiles(const std::string& folder,
                                       const std::map<std::string, std::string>& files) {
  std::vector<std::string> names;
  for (const auto& [name, text] : files) {
    MP_RETURN_IF_ERROR(WriteNewFile(absl::StrCat(folder, "/", name), text));
    names.push_back(name);
  }
  return absl::StrJoin(names, ", ");
}

class Exporter {
 public:
  // Of adapters `peft`: under PEFT's names. With `base`, magnitudes instead of what they have
  // changed by.
  Exporter(const v1::CheckpointManifest& manifest, const ExportSettings& settings,
           const std::string& folder, bool peft = false, const AdaptedBase* base = nullptr)
      : manifest_(manifest),
        settings_(settings),
        folder_(folder),
        peft_(peft),
        base_(base),
        of_script_(IsOfScript(manifest)) {}

  // Writes the weights, and the other files by their names.
  absl::StatusOr<ExportReport> Run(const ChunkReader& read,
                                   const std::map<std::string, std::string>& files) {
    MP_RETURN_IF_ERROR(Prepare());
    absl::Status failure;
    const absl::Status status = read(request_, [&](const v1::Chunk& chunk) {
      failure = Accept(chunk);
      return failure.ok();
    });
    MP_RETURN_IF_ERROR(failure);
    MP_RETURN_IF_ERROR(status);
    MP_RETURN_IF_ERROR(CheckComplete());
    MP_ASSIGN_OR_RETURN(std::string others, WriteFiles(folder_, files));
    MP_RETURN_IF_ERROR(writer_->Finish());
    return ExportReport{.tensors = static_cast<int64_t>(sources_.size()),
                        .bytes = writer_->bytes(),
                        .files = static_cast<int64_t>(writer_->files().size()),
                        .others = std::move(others)};
  }

 private:
  absl::Status Prepare() {
    MP_ASSIGN_OR_RETURN(layout_, state::StateLayout::FromProto(manifest_.tensors()));
    for (const state::TensorSpec& tensor : layout_.tensors()) {
      if (tensor.kind == state::kAverageKind) averaged_.insert(tensor.name);
    }
    std::vector<state::SafetensorsTensor> tensors;
    outputs_.assign(layout_.tensors().size(), -1);
    for (int32_t i = 0; i < manifest_.tensors_size(); ++i) {
      const state::TensorSpec& source = layout_.tensor(i);
      const bool as_it_is = AsItIs(i);
      if (!as_it_is && source.kind != KindOf(source.name)) continue;
      if (IsStructure(manifest_.tensors(i))) continue;
      if (!as_it_is && source.dtype != DType::kF32 && source.dtype != DType::kBf16) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", source.name, " is ", Name(source.dtype), "; F32 and BF16 can be exported"));
      }
      outputs_[static_cast<size_t>(i)] = static_cast<int64_t>(tensors.size());
      sources_.push_back(i);
      state::SafetensorsTensor& tensor = tensors.emplace_back();
      tensor.name = peft_ ? models::PeftName(source.name) : source.name;
      MP_RETURN_IF_ERROR(FindNorms(i));
      tensor.dtype = Name(TypeOf(i));
      tensor.shape = source.shape;
      if (source.elements == 0) continue;
      v1::TensorRange& range = *request_.add_ranges();
      range.set_tensor(i);
      range.set_end(source.elements);
    }
    if (sources_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(manifest_.checkpoint().name(), " holds no parameters"));
    }
    request_.set_name(manifest_.checkpoint().name());
    // PEFT's is always one file.
    MP_ASSIGN_OR_RETURN(writer_,
                        state::SafetensorsWriter::Create(
                            folder_, std::move(tensors),
                            peft_ ? std::numeric_limits<int64_t>::max() : settings_.max_shard_bytes,
                            peft_ ? models::kPeftWeights : state::kSafetensorsFile));
    return absl::OkStatus();
  }

  // Whether it was asked for, and is whole.
  absl::Status Check(const v1::Chunk& chunk, const state::Interval& interval) const {
    if (!layout_.CheckInterval(interval).ok() ||
        outputs_[static_cast<size_t>(chunk.tensor())] < 0 ||
        layout_.BytesOf(interval) != static_cast<int64_t>(chunk.data().size())) {
      return absl::DataLossError(
          absl::StrCat(request_.name(), ": a chunk that was not asked for (tensor ", chunk.tensor(),
                       " [", chunk.begin(), ", ", chunk.end(), "))"));
    }
    if (Xxh3(chunk.data()) != chunk.xxh3()) {
      return absl::DataLossError(absl::StrCat(request_.name(), ": the chunk ",
                                              layout_.Describe(interval),
                                              " does not have the checksum it was saved with"));
    }
    return absl::OkStatus();
  }

  absl::Status Accept(const v1::Chunk& chunk) {
    const state::Interval interval = {chunk.tensor(), chunk.begin(), chunk.end()};
    MP_RETURN_IF_ERROR(Check(chunk, interval));
    // A stream that is opened again gives its chunks again.
    if (!received_.insert(interval).second) return absl::OkStatus();
    const int64_t element = ByteSize(TypeOf(chunk.tensor()));
    return writer_->Write(static_cast<size_t>(outputs_[static_cast<size_t>(chunk.tensor())]),
                          chunk.begin() * element, Converted(chunk));
  }

  // Of a magnitude's change: what has changed.
  absl::Status FindNorms(int32_t tensor) {
    const state::TensorSpec& source = layout_.tensor(tensor);
    if (base_ == nullptr || !models::IsMagnitudeChange(source.name)) return absl::OkStatus();
    if (settings_.interrupted && settings_.interrupted()) {
      return absl::CancelledError("interrupted: nothing was written");
    }
    MP_ASSIGN_OR_RETURN(norms_[tensor], base_->Norms(models::AdaptedLayer(source.name)));
    if (static_cast<int64_t>(norms_[tensor].size()) == source.elements) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(manifest_.checkpoint().name(), ": ", source.name,
                                            " has another size than its layer"));
  }

  // What is exported of a parameter.
  absl::string_view KindOf(const std::string& name) const {
    const bool average = !settings_.trained_weights && averaged_.contains(name);
    return average ? absl::string_view(state::kAverageKind) : kParameterKind;
  }

  // Running statistics keep their dtype: it is not the model's. So does all of a script.
  bool AsItIs(int32_t tensor) const {
    return of_script_ || layout_.tensor(tensor).kind == state::kStatisticKind;
  }

  // Of the output. 16 bits would lose what has changed of a magnitude.
  DType TypeOf(int32_t tensor) const {
    if (AsItIs(tensor)) return layout_.tensor(tensor).dtype;
    return norms_.contains(tensor) ? DType::kF32 : settings_.dtype;
  }

  // The chunk's bytes in the output's dtype.
  absl::string_view Converted(const v1::Chunk& chunk) {
    const DType from = layout_.tensor(chunk.tensor()).dtype;
    const auto norms = norms_.find(chunk.tensor());
    const bool magnitude = norms != norms_.end();
    if (AsItIs(chunk.tensor()) || (from == settings_.dtype && !magnitude)) return chunk.data();
    values_.resize(static_cast<size_t>(chunk.end() - chunk.begin()));
    DecodeF32(chunk.data(), from, values_.data());
    for (size_t i = 0; magnitude && i < values_.size(); ++i) {
      const double norm = norms->second[static_cast<size_t>(chunk.begin()) + i];
      values_[i] = static_cast<float>(norm + values_[i]);
    }
    EncodeWeights(values_, TypeOf(chunk.tensor()), &converted_);
    return converted_;
  }

  absl::Status CheckComplete() const {
    auto next = received_.begin();
    for (const int32_t tensor : sources_) {
      int64_t covered = 0;
      for (; next != received_.end() && next->tensor == tensor && next->begin <= covered; ++next) {
        covered = std::max(covered, next->end);
      }
      if (covered == layout_.tensor(tensor).elements) continue;
      return absl::DataLossError(absl::StrCat(request_.name(), ": elements of ",
                                              layout_.tensor(tensor).name, " from ", covered,
                                              " on did not come"));
    }
    return absl::OkStatus();
  }

  const v1::CheckpointManifest& manifest_;
  const ExportSettings& settings_;
  const std::string folder_;
  const bool peft_;
  const AdaptedBase* const base_;
  const bool of_script_;
  state::StateLayout layout_;
  std::set<std::string> averaged_;  // parameters of which there is an average
  std::vector<int32_t> sources_;    // the manifest's numbers of what is exported
  std::vector<int64_t>
      outputs_;  // of each of the manifest's tensors: its number in the file, or -1
  v1::ReadChunksRequest request_;
  std::unique_ptr<state::SafetensorsWriter> writer_;
  std::set<state::Interval> received_;
  std::map<int32_t, std::vector<double>> norms_;  // of magnitudes, by the manifest's number
  std::vector<float> values_;
  std::string converted_;
};

const char* TorchName(DType dtype) {
  return dtype == DType::kBf16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

// "state.json", or "rank3.json" for what is rank 3's own. Empty: not one that is exported. A name
// is what a script says, and no path.
std::string StructureFile(const v1::TensorInfo& tensor) {
  if (tensor.kind() == kStructureKind) {
    return tensor.name() == "milepost.structure" ? "state.json" : "";
  }
  absl::string_view number = tensor.name();
  int rank = 0;
  const bool valid = tensor.kind() == kRankStructureKind && absl::ConsumePrefix(&number, "rank") &&
                     absl::ConsumeSuffix(&number, ".structure") &&
                     absl::SimpleAtoi(number, &rank) && rank >= 0;
  return valid ? absl::StrCat("rank", rank, ".json") : "";
}

// The texts that say what a script's state is besides its tensors, by file.
absl::StatusOr<std::map<std::string, std::string>> StructureFiles(
    const v1::CheckpointManifest& manifest, const ChunkReader& read) {
  std::map<std::string, std::string> files;
  for (int32_t i = 0; i < manifest.tensors_size(); ++i) {
    const v1::TensorInfo& tensor = manifest.tensors(i);
    const std::string file = StructureFile(tensor);
    if (file.empty()) continue;
    if (tensor.dtype() != "U8" || tensor.shape_size() != 1 || tensor.shape(0) > kMostTextBytes) {
      return absl::DataLossError(absl::StrCat(manifest.checkpoint().name(), ": ", tensor.name(),
                                              " is no text of at most ", kMostTextBytes, " bytes"));
    }
    std::string text(static_cast<size_t>(tensor.shape(0)), '\0');
    v1::ReadChunksRequest request;
    request.set_name(manifest.checkpoint().name());
    v1::TensorRange& range = *request.add_ranges();
    range.set_tensor(i);
    range.set_end(tensor.shape(0));
    absl::Status damage;
    const absl::Status status = read(request, [&](const v1::Chunk& chunk) {
      const auto begin = static_cast<size_t>(chunk.begin());
      if (chunk.tensor() != i || Xxh3(chunk.data()) != chunk.xxh3() || begin > text.size() ||
          chunk.data().size() > text.size() - begin) {
        damage = absl::DataLossError(
            absl::StrCat(request.name(), ": ", tensor.name(), " is not what was saved"));
        return false;
      }
      text.replace(begin, chunk.data().size(), chunk.data());
      return true;
    });
    MP_RETURN_IF_ERROR(damage);
    MP_RETURN_IF_ERROR(status);
    if (absl::StrContains(text, '\0')) {  // as it began: JSON has none
      return absl::DataLossError(
          absl::StrCat(request.name(), ": a part of ", tensor.name(), " did not come"));
    }
    files[file] = std::move(text);
  }
  return files;
}

absl::StatusOr<v1::ModelSpec> ModelOf(const v1::CheckpointManifest& manifest) {
  v1::ModelSpec model;
  MP_RETURN_IF_ERROR(
      ParseYamlMessage(manifest.model_yaml(), manifest.checkpoint().name() + " model", &model));
  return model;
}

// PEFT finds layers by their names. What cannot be read is not judged: the folder may be elsewhere.
absl::Status CheckAdaptersFit(const std::string& base) {
  if (base.empty()) return absl::OkStatus();
  const auto type = models::HfTypeThatIsConverted(base);
  if (!type.ok() || type->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the adapters fit no ", *type, ", which ", base,
                                                    " is: --merge writes the whole model"));
}

// The config, and what belongs to the tokenizer.
absl::StatusOr<std::map<std::string, std::string>> FilesWithTokenizer(
    const v1::CheckpointManifest& manifest, const ExportSettings& settings) {
  MP_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelOf(manifest));
  std::map<std::string, std::string> files;
  if (!settings.tokenizer.empty()) {
    MP_ASSIGN_OR_RETURN(files, TokenizerFiles(settings.tokenizer));
  }
  if (model.has_lora() && !settings.merge) {
    MP_RETURN_IF_ERROR(CheckAdaptersFit(settings.base));
    MP_ASSIGN_OR_RETURN(files[std::string(models::kPeftConfig)],
                        models::PeftConfig(model, settings.base));
    return files;
  }
  std::string tokens_from;
  if (!files.empty()) {
    const auto text = ReadRegularFile(settings.tokenizer + "/config.json", kMostConfigBytes);
    if (text.ok()) tokens_from = *text;
  }
  auto config = models::HfConfig(model, TorchName(settings.dtype), tokens_from);
  if (!config.ok()) {
    return tokens_from.empty() ? config.status()
                               : Annotate(config.status(), settings.tokenizer + "/config.json");
  }
  files["config.json"] = *std::move(config);
  return files;
}

absl::StatusOr<std::map<std::string, std::string>> ModelFiles(
    const v1::CheckpointManifest& manifest, const ExportSettings& settings,
    std::string* tokenizer_problem) {
  auto files = FilesWithTokenizer(manifest, settings);
  if (files.ok() || !settings.tokenizer_if_readable) return files;
  *tokenizer_problem = std::string(files.status().message());
  ExportSettings without = settings;
  without.tokenizer.clear();
  return FilesWithTokenizer(manifest, without);
}

// As PEFT has them. It has whole magnitudes, where the checkpoint has what changed.
absl::StatusOr<ExportReport> ExportAdapters(const v1::CheckpointManifest& manifest,
                                            const v1::ModelSpec& model, const ChunkReader& read,
                                            const ExportSettings& settings,
                                            const std::string& folder,
                                            const std::map<std::string, std::string>& files) {
  if (!model.lora().dora()) {
    return Exporter(manifest, settings, folder, /*peft=*/true).Run(read, files);
  }
  if (settings.base.empty()) {
    return absl::InvalidArgumentError(
        "the magnitudes of model.lora.dora are those of the model that was adapted and what was "
        "trained: name its folder with --base");
  }
  MP_ASSIGN_OR_RETURN(const AdaptedBase base,
                      AdaptedBase::Open(model, settings.base, manifest.state().base()));
  return Exporter(manifest, settings, folder, /*peft=*/true, &base).Run(read, files);
}

// The adapters go through a file, so that memory does not grow with them.
absl::StatusOr<ExportReport> ExportMerged(const v1::CheckpointManifest& manifest,
                                          const v1::ModelSpec& model, const ChunkReader& read,
                                          const ExportSettings& settings,
                                          const std::string& folder) {
  if (settings.base.empty()) {
    return absl::InvalidArgumentError(
        "--merge needs the model that was adapted: name its folder with --base");
  }
  const std::string beside = folder + "/adapters";
  std::error_code error;
  std::filesystem::create_directory(beside, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make ", beside));
  ExportSettings whole = settings;
  whole.dtype = DType::kF32;
  whole.max_shard_bytes = std::numeric_limits<int64_t>::max();
  MP_RETURN_IF_ERROR(Exporter(manifest, whole, beside).Run(read, {}).status());
  MP_ASSIGN_OR_RETURN(const MergeReport merged,
                      MergeAdapters({.model = model,
                                     .base = settings.base,
                                     .fingerprint = manifest.state().base(),
                                     .adapters = absl::StrCat(beside, "/", state::kSafetensorsFile),
                                     .dtype = settings.dtype,
                                     .max_shard_bytes = settings.max_shard_bytes,
                                     .interrupted = settings.interrupted},
                                    folder));
  std::filesystem::remove_all(beside, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot remove ", beside));
  return ExportReport{.tensors = merged.tensors, .bytes = merged.bytes, .files = merged.files};
}

absl::StatusOr<ExportReport> ExportTo(const std::string& folder,
                                      const v1::CheckpointManifest& manifest,
                                      const ChunkReader& read, const ExportSettings& settings,
                                      const std::map<std::string, std::string>& files) {
  v1::ModelSpec model;
  if (!IsOfScript(manifest)) {
    MP_ASSIGN_OR_RETURN(model, ModelOf(manifest));
  }
  if (!settings.merge && !model.has_lora()) {
    return Exporter(manifest, settings, folder).Run(read, files);
  }
  if (!settings.merge) return ExportAdapters(manifest, model, read, settings, folder, files);
  if (!model.has_lora()) {
    return absl::InvalidArgumentError(absl::StrCat(
        manifest.checkpoint().name(), " has no adapters (model.lora): leave --merge out"));
  }
  MP_ASSIGN_OR_RETURN(ExportReport report, ExportMerged(manifest, model, read, settings, folder));
  MP_ASSIGN_OR_RETURN(report.others, WriteFiles(folder, files));
  return report;
}

}  // namespace

absl::StatusOr<ExportReport> ExportCheckpoint(const v1::CheckpointManifest& manifest,
                                              const ChunkReader& read,
                                              const ExportSettings& settings) {
  std::string problem;
  MP_ASSIGN_OR_RETURN(const auto files, IsOfScript(manifest)
                                            ? StructureFiles(manifest, read)
                                            : ModelFiles(manifest, settings, &problem));
  MP_ASSIGN_OR_RETURN(const auto folder, NewFolder::Create(settings.folder));
  MP_ASSIGN_OR_RETURN(ExportReport report,
                      ExportTo(folder->path(), manifest, read, settings, files));
  MP_RETURN_IF_ERROR(folder->Finish());
  report.tokenizer_problem = problem;
  return report;
}

}  // namespace milepost::client
