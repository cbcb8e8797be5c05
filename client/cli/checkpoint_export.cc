#include "client/cli/checkpoint_export.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
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
#include "client/cli/tokenizer_folder.h"
#include "common/checksum.h"
#include "common/regular_file.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "engine/models/hugging_face.h"
#include "engine/state/half.h"
#include "engine/state/layout.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;

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

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok() || fsync(fd.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", folder));
  }
  return absl::OkStatus();
}

absl::Status WriteSynced(const std::string& path, absl::string_view text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  const auto size = static_cast<ssize_t>(text.size());
  if (!fd.ok() || write(fd.get(), text.data(), text.size()) != size || fsync(fd.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

// A folder beside `target` that becomes it, or goes away.
class FolderInMaking {
 public:
  static absl::StatusOr<std::unique_ptr<FolderInMaking>> Create(const std::string& target) {
    std::unique_ptr<FolderInMaking> folder(new FolderInMaking);
    folder->target_ = target;
    while (folder->target_.size() > 1 && folder->target_.back() == '/') folder->target_.pop_back();
    MP_RETURN_IF_ERROR(folder->CheckTarget());
    folder->path_ = folder->target_ + ".tmp-XXXXXX";
    if (mkdtemp(folder->path_.data()) == nullptr) {
      const int error = errno;
      folder->path_.clear();
      return absl::ErrnoToStatus(error, absl::StrCat("cannot make a folder beside ", target));
    }
    const mode_t mask = umask(0);
    umask(mask);
    chmod(folder->path_.c_str(), 0777 & ~mask);  // mkdtemp's is for its owner alone
    return folder;
  }
  ~FolderInMaking() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }

  const std::string& path() const { return path_; }

  absl::Status Finish() {
    MP_RETURN_IF_ERROR(CheckTarget());
    if (rename(path_.c_str(), target_.c_str()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot put ", target_, " into place"));
    }
    path_.clear();
    const std::string parent = fs::path(target_).parent_path().string();
    return SyncFolder(parent.empty() ? "." : parent);
  }

 private:
  FolderInMaking() = default;

  // An empty folder may be there: rename replaces it.
  absl::Status CheckTarget() const {
    std::error_code error;
    if (fs::exists(target_, error) &&
        !(fs::is_directory(target_, error) && fs::is_empty(target_, error) && !error)) {
      return absl::AlreadyExistsError(absl::StrCat(
          target_, " exists and is not an empty folder; choose another --out, or remove it"));
    }
    return absl::OkStatus();
  }

  std::string target_;
  std::string path_;
};

class Exporter {
 public:
  Exporter(const v1::CheckpointManifest& manifest, const ExportSettings& settings,
           const std::string& folder)
      : manifest_(manifest),
        settings_(settings),
        folder_(folder),
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
    std::vector<std::string> names;
    for (const auto& [name, text] : files) {
      MP_RETURN_IF_ERROR(WriteSynced(absl::StrCat(folder_, "/", name), text));
      names.push_back(name);
    }
    MP_RETURN_IF_ERROR(writer_->Finish());
    return ExportReport{.tensors = static_cast<int64_t>(sources_.size()),
                        .bytes = writer_->bytes(),
                        .files = static_cast<int64_t>(writer_->files().size()),
                        .others = absl::StrJoin(names, ", ")};
  }

 private:
  absl::Status Prepare() {
    MP_ASSIGN_OR_RETURN(layout_, state::StateLayout::FromProto(manifest_.tensors()));
    std::vector<state::SafetensorsTensor> tensors;
    outputs_.assign(layout_.tensors().size(), -1);
    for (int32_t i = 0; i < manifest_.tensors_size(); ++i) {
      const state::TensorSpec& source = layout_.tensor(i);
      const bool as_it_is = AsItIs(i);
      if (!as_it_is && source.kind != kParameterKind) continue;
      if (IsStructure(manifest_.tensors(i))) continue;
      if (!as_it_is && source.dtype != DType::kF32 && source.dtype != DType::kBf16) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", source.name, " is ", Name(source.dtype), "; F32 and BF16 can be exported"));
      }
      outputs_[static_cast<size_t>(i)] = static_cast<int64_t>(tensors.size());
      sources_.push_back(i);
      state::SafetensorsTensor& tensor = tensors.emplace_back();
      tensor.name = source.name;
      tensor.dtype = Name(as_it_is ? source.dtype : settings_.dtype);
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
    MP_ASSIGN_OR_RETURN(writer_, state::SafetensorsWriter::Create(folder_, std::move(tensors),
                                                                  settings_.max_shard_bytes));
    return absl::OkStatus();
  }

  absl::Status Accept(const v1::Chunk& chunk) {
    const state::Interval interval = {chunk.tensor(), chunk.begin(), chunk.end()};
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
    // A stream that is opened again gives its chunks again.
    if (!received_.insert(interval).second) return absl::OkStatus();
    const int64_t element =
        ByteSize(AsItIs(chunk.tensor()) ? layout_.tensor(chunk.tensor()).dtype : settings_.dtype);
    return writer_->Write(static_cast<size_t>(outputs_[static_cast<size_t>(chunk.tensor())]),
                          chunk.begin() * element, Converted(chunk));
  }

  // Running statistics keep their dtype: it is not the model's. So does all of a script.
  bool AsItIs(int32_t tensor) const {
    return of_script_ || layout_.tensor(tensor).kind == state::kStatisticKind;
  }

  // The chunk's bytes in the output's dtype.
  absl::string_view Converted(const v1::Chunk& chunk) {
    const DType from = layout_.tensor(chunk.tensor()).dtype;
    if (AsItIs(chunk.tensor()) || from == settings_.dtype) return chunk.data();
    const auto count = static_cast<size_t>(chunk.end() - chunk.begin());
    const auto load = [&](size_t i) {
      if (from == DType::kBf16) {
        uint16_t bits;
        std::memcpy(&bits, chunk.data().data() + 2 * i, 2);
        return state::Bf16ToF32(bits);
      }
      float value;
      std::memcpy(&value, chunk.data().data() + 4 * i, 4);
      return value;
    };
    converted_.resize(count * (settings_.dtype == DType::kF32 ? 4 : 2));
    for (size_t i = 0; i < count; ++i) {
      const float value = load(i);
      if (settings_.dtype == DType::kF32) {
        std::memcpy(converted_.data() + 4 * i, &value, 4);
        continue;
      }
      const bool bf16 = settings_.dtype == DType::kBf16;
      const uint16_t bits = bf16 ? state::F32ToBf16(value) : state::F32ToF16(value);
      std::memcpy(converted_.data() + 2 * i, &bits, 2);
    }
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
  const bool of_script_;
  state::StateLayout layout_;
  std::vector<int32_t> sources_;  // the manifest's numbers of what is exported
  std::vector<int64_t>
      outputs_;  // of each of the manifest's tensors: its number in the file, or -1
  v1::ReadChunksRequest request_;
  std::unique_ptr<state::SafetensorsWriter> writer_;
  std::set<state::Interval> received_;
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

// config.json, and what belongs to the tokenizer.
absl::StatusOr<std::map<std::string, std::string>> FilesWithTokenizer(
    const v1::CheckpointManifest& manifest, const ExportSettings& settings) {
  v1::ModelSpec model;
  MP_RETURN_IF_ERROR(
      ParseYamlMessage(manifest.model_yaml(), manifest.checkpoint().name() + " model", &model));
  std::map<std::string, std::string> files;
  if (!settings.tokenizer.empty()) {
    MP_ASSIGN_OR_RETURN(files, TokenizerFiles(settings.tokenizer));
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

}  // namespace

absl::StatusOr<ExportReport> ExportCheckpoint(const v1::CheckpointManifest& manifest,
                                              const ChunkReader& read,
                                              const ExportSettings& settings) {
  std::string problem;
  MP_ASSIGN_OR_RETURN(const auto files, IsOfScript(manifest)
                                            ? StructureFiles(manifest, read)
                                            : ModelFiles(manifest, settings, &problem));
  MP_ASSIGN_OR_RETURN(const auto folder, FolderInMaking::Create(settings.folder));
  MP_ASSIGN_OR_RETURN(ExportReport report,
                      Exporter(manifest, settings, folder->path()).Run(read, files));
  MP_RETURN_IF_ERROR(folder->Finish());
  report.tokenizer_problem = problem;
  return report;
}

}  // namespace milepost::client
