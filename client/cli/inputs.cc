#include "client/cli/inputs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/model_sizes.h"
#include "common/spec/paths.h"
#include "common/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/images/image_set.h"
#include "engine/data/token_file.h"
#include "engine/models/hugging_face.h"
#include "engine/state/safetensors.h"

namespace milepost::client {
namespace {

// A file of a larger vocabulary shows within a few pages; the trainer looks at every token.
constexpr int64_t kTokensLookedAt = 1 << 20;

absl::Status InvalidAt(absl::string_view field, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", status.message()));
}

bool IsHere(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// What further heads learn of a set; `path`: of an entry of `labels`.
template <typename Labels, typename Path>
std::vector<data::LabelOptions> LabelsOf(const v1::JobSpec& spec, const Labels& labels, Path path) {
  std::vector<data::LabelOptions> options;
  for (const v1::TaskHeadSpec& head : spec.model().heads()) {
    for (const auto& source : labels) {
      if (source.head() != head.name()) continue;
      options.push_back({.field = head.name(),
                         .path = path(source),
                         .classes = head.classes(),
                         .head = head.name()});
    }
  }
  return options;
}

absl::Status CheckImages(const v1::JobSpec& spec, const std::string& path,
                         const std::vector<data::LabelOptions>& labels) {
  data::ImageSetOptions options = {.classes = SizesOf(spec.model()).vocabulary};
  for (const data::LabelOptions& of_one : labels) {
    if (of_one.path.empty()) options.heads.push_back(of_one.head);
  }
  MP_ASSIGN_OR_RETURN(const auto images, data::OpenImageSet(path, options));
  return data::ReadHeadLabels(path, *images, labels).status();
}

// What can be predicted: no padding, nothing after a document's end, and with masking none of the
// tokens that are never chosen.
bool AnyTarget(const v1::DataSpec& data, absl::Span<const int32_t> tokens) {
  const auto is = [](bool given, int64_t id, int32_t token) { return given && token == id; };
  const auto padding = [&](int32_t token) { return is(data.has_padding(), data.padding(), token); };
  const auto ends = [&](int32_t token) {
    return is(data.has_document_separator(), data.document_separator(), token);
  };
  if (!data.has_masking()) {
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (!ends(tokens[i]) && !padding(tokens[i]) && !padding(tokens[i + 1])) return true;
    }
    return false;
  }
  const auto& special = data.masking().special_tokens();
  return std::any_of(tokens.begin(), tokens.end(), [&](int32_t token) {
    return !ends(token) && !padding(token) &&
           !is(data.has_segment_separator(), data.segment_separator(), token) &&
           std::find(special.begin(), special.end(), token) == special.end();
  });
}

absl::Status NothingToPredict(const std::string& path, bool masks) {
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": no token can be predicted, so there is nothing to learn: all are padding or separators",
      masks ? ", or never masked" : "", "; look at data.padding, data.document_separator",
      masks ? " and data.masking.special_tokens" : "", ", and at the file"));
}

absl::Status CheckTokens(const v1::JobSpec& spec, const std::string& path,
                         const std::vector<data::LabelOptions>& labels,
                         const std::string& loss_mask) {
  const int64_t vocabulary = SizesOf(spec.model()).vocabulary;
  MP_RETURN_IF_ERROR(
      data::TokenDataset::Open(path, {.sequence_length = spec.data().sequence_length(),
                                      .vocabulary = vocabulary,
                                      .labels = labels,
                                      .loss_mask = loss_mask})
          .status());
  MP_ASSIGN_OR_RETURN(const auto file, data::TokenFile::Open(path));
  std::vector<int32_t> first(static_cast<size_t>(std::min(file->size(), kTokensLookedAt)));
  MP_RETURN_IF_ERROR(file->Read(0, vocabulary, absl::MakeSpan(first)));
  const bool all = static_cast<int64_t>(first.size()) == file->size();
  if (!all || AnyTarget(spec.data(), first)) return absl::OkStatus();
  return NothingToPredict(path, spec.data().has_masking());
}

// A file of a job's data, and the file that says which of its tokens are targets.
struct DataFile {
  std::string field;
  std::string path;
  std::string loss_mask;
  std::vector<data::LabelOptions> labels = {};
};

std::vector<DataFile> TrainFiles(const v1::JobSpec& spec) {
  const std::vector<data::LabelOptions> labels = LabelsOf(
      spec, spec.data().labels(), [](const v1::LabelSource& source) { return source.train(); });
  std::vector<DataFile> files;
  for (const v1::TokenSource& source : spec.data().mixture()) {
    files.push_back({"data.mixture.path", source.path(), source.loss_mask(), labels});
  }
  if (!files.empty()) return files;
  return {{"data.train", spec.data().train(), spec.data().loss_mask().train(), labels}};
}

std::vector<DataFile> ValidationFiles(const v1::JobSpec& spec) {
  const v1::DataSpec& data = spec.data();
  if (data.validation().empty()) return {};
  std::vector<DataFile> files = {
      {"data.validation", data.validation(), data.loss_mask().validation(),
       LabelsOf(spec, data.labels(),
                [](const v1::LabelSource& source) { return source.validation(); })}};
  for (const v1::ValidationSetSpec& set : data.validation_sets()) {
    files.push_back(
        {absl::StrCat("data.validation_sets, ", set.name()), set.path(), set.loss_mask(),
         LabelsOf(spec, set.labels(), [](const v1::SetLabels& source) { return source.path(); })});
  }
  return files;
}

// `here`: labels and masks that are not here are left out.
absl::Status CheckData(const v1::JobSpec& spec, const DataFile& file, bool here) {
  std::vector<data::LabelOptions> labels = file.labels;
  if (here) {
    const auto elsewhere = [](const auto& one) { return !one.path.empty() && !IsHere(one.path); };
    labels.erase(std::remove_if(labels.begin(), labels.end(), elsewhere), labels.end());
  }
  if (SizesOf(spec.model()).images) {
    return InvalidAt(file.field, CheckImages(spec, file.path, labels));
  }
  const bool left_out = here && !IsHere(file.loss_mask);
  return InvalidAt(file.field,
                   CheckTokens(spec, file.path, labels, left_out ? "" : file.loss_mask));
}

absl::Status CheckInitFrom(const v1::JobSpec& spec, const std::string& folder) {
  MP_RETURN_IF_ERROR(InvalidAt("train.init_from", models::CheckHfFolder(spec.model(), folder)));
  return InvalidAt("train.init_from", state::SafetensorsFolder::Open(folder).status());
}

absl::Status CheckScriptFolder(const std::string& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("script.folder: ", folder, " is not there, or is no folder"));
}

absl::Status Check(const v1::JobSpec& spec, bool here) {
  if (spec.has_script()) {
    const std::string& folder = spec.script().folder();
    return here && !IsHere(folder) ? absl::OkStatus() : CheckScriptFolder(folder);
  }
  // Folders of images are listed by the run alone: that may take minutes.
  const auto listed = [&](const std::string& path) {
    std::error_code error;
    return SizesOf(spec.model()).images && std::filesystem::is_directory(path, error);
  };
  const auto looked_at = [&](const std::string& path) {
    return !here || (IsHere(path) && !listed(path));
  };
  for (const std::vector<DataFile>& files : {TrainFiles(spec), ValidationFiles(spec)}) {
    for (const DataFile& file : files) {
      if (looked_at(file.path)) MP_RETURN_IF_ERROR(CheckData(spec, file, here));
    }
  }
  const std::string& folder = spec.train().init_from();
  return folder.empty() || !looked_at(folder) ? absl::OkStatus() : CheckInitFrom(spec, folder);
}

}  // namespace

std::vector<std::string> TrainPaths(const v1::JobSpec& spec) {
  std::vector<std::string> paths;
  for (DataFile& file : TrainFiles(spec)) paths.push_back(std::move(file.path));
  return paths;
}

absl::Status CheckReads(const v1::JobSpec& spec) { return Check(spec, /*here=*/false); }

absl::Status CheckReadsHere(const v1::JobSpec& spec, std::vector<std::string>* elsewhere) {
  v1::JobSpec paths = spec;
  ForEachPath(&paths, [&](absl::string_view field, PathUse use, std::string* path) {
    if (use != PathUse::kRead || path->empty() || IsHere(*path)) return;
    const std::string what = absl::StrCat(field, " ", *path);
    if (std::find(elsewhere->begin(), elsewhere->end(), what) == elsewhere->end()) {
      elsewhere->push_back(what);
    }
  });
  return Check(spec, /*here=*/true);
}

std::string TellElsewhere(const std::vector<std::string>& elsewhere) {
  constexpr size_t kShown = 8;
  if (elsewhere.empty()) return "";
  const size_t shown = std::min(kShown, elsewhere.size());
  const std::vector<std::string> first(elsewhere.begin(),
                                       elsewhere.begin() + static_cast<ptrdiff_t>(shown));
  return absl::StrCat(
      "not on this machine, and so not looked at: ", absl::StrJoin(first, ", "),
      elsewhere.size() > shown ? absl::StrCat(" and ", elsewhere.size() - shown, " more") : "");
}

absl::Status CheckWrites(const v1::JobSpec& spec) {
  const std::string& folder = spec.report().tensorboard();
  if (folder.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("report.tensorboard: ", folder,
                                                 " cannot be written: ", error.message(),
                                                 "; name another folder, or leave it out"));
}

}  // namespace milepost::client
