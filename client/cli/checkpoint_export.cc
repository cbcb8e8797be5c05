#include "client/cli/checkpoint_export.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
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
      : manifest_(manifest), settings_(settings), folder_(folder) {}

  absl::StatusOr<ExportReport> Run(const ChunkReader& read, const std::string& config) {
    MP_RETURN_IF_ERROR(Prepare());
    absl::Status failure;
    const absl::Status status = read(request_, [&](const v1::Chunk& chunk) {
      failure = Accept(chunk);
      return failure.ok();
    });
    MP_RETURN_IF_ERROR(failure);
    MP_RETURN_IF_ERROR(status);
    MP_RETURN_IF_ERROR(CheckComplete());
    MP_RETURN_IF_ERROR(WriteSynced(folder_ + "/config.json", config));
    MP_RETURN_IF_ERROR(writer_->Finish());
    return ExportReport{.tensors = static_cast<int64_t>(sources_.size()),
                        .bytes = writer_->bytes(),
                        .files = static_cast<int64_t>(writer_->files().size())};
  }

 private:
  absl::Status Prepare() {
    MP_ASSIGN_OR_RETURN(layout_, state::StateLayout::FromProto(manifest_.tensors()));
    std::vector<state::SafetensorsTensor> tensors;
    outputs_.assign(layout_.tensors().size(), -1);
    for (int32_t i = 0; i < manifest_.tensors_size(); ++i) {
      const state::TensorSpec& source = layout_.tensor(i);
      const bool statistic = source.kind == state::kStatisticKind;
      if (!statistic && source.kind != kParameterKind) continue;
      if (!statistic && source.dtype != DType::kF32 && source.dtype != DType::kBf16) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", source.name, " is ", Name(source.dtype), "; F32 and BF16 can be exported"));
      }
      outputs_[static_cast<size_t>(i)] = static_cast<int64_t>(tensors.size());
      sources_.push_back(i);
      state::SafetensorsTensor& tensor = tensors.emplace_back();
      tensor.name = source.name;
      tensor.dtype = Name(statistic ? source.dtype : settings_.dtype);
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
        ByteSize(AsItIs(chunk) ? layout_.tensor(chunk.tensor()).dtype : settings_.dtype);
    return writer_->Write(static_cast<size_t>(outputs_[static_cast<size_t>(chunk.tensor())]),
                          chunk.begin() * element, Converted(chunk));
  }

  // Running statistics keep their dtype: it is not the model's.
  bool AsItIs(const v1::Chunk& chunk) const {
    return layout_.tensor(chunk.tensor()).kind == state::kStatisticKind;
  }

  // The chunk's bytes in the output's dtype.
  absl::string_view Converted(const v1::Chunk& chunk) {
    const DType from = layout_.tensor(chunk.tensor()).dtype;
    if (AsItIs(chunk) || from == settings_.dtype) return chunk.data();
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

}  // namespace

absl::StatusOr<ExportReport> ExportCheckpoint(const v1::CheckpointManifest& manifest,
                                              const ChunkReader& read,
                                              const ExportSettings& settings) {
  v1::ModelSpec model;
  MP_RETURN_IF_ERROR(
      ParseYamlMessage(manifest.model_yaml(), manifest.checkpoint().name() + " model", &model));
  MP_ASSIGN_OR_RETURN(const std::string config, models::HfConfig(model, TorchName(settings.dtype)));
  MP_ASSIGN_OR_RETURN(const auto folder, FolderInMaking::Create(settings.folder));
  MP_ASSIGN_OR_RETURN(const ExportReport report,
                      Exporter(manifest, settings, folder->path()).Run(read, config));
  MP_RETURN_IF_ERROR(folder->Finish());
  return report;
}

}  // namespace milepost::client
