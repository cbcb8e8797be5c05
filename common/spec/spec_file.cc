// The part of parse.h that reads files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestName = 63;

// An invalid argument whatever the reason: "not found" is about jobs.
absl::Status Unreadable(const std::string& path, int error) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot read the job spec ", path, ": ", std::strerror(error)));
}

absl::StatusOr<std::string> ReadBounded(const std::string& path) {
  // Not blocking: a FIFO without a writer would hold the open for ever.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Unreadable(path, errno);
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  std::string text(kMaxSpecBytes + 1, '\0');
  size_t size = 0;
  ssize_t got;
  while (size < text.size() && (got = read(fd, text.data() + size, text.size() - size)) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      close(fd);
      return Unreadable(path, error);
    }
    size += got;
  }
  close(fd);
  text.resize(size);
  return text;
}

// The file's name without its extension, as a valid job name.
std::string DefaultName(const fs::path& path) {
  std::string name = path.stem().string().substr(0, kLongestName);
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') c = '-';
  }
  return name;
}

void MakeAbsolute(const fs::path& folder, std::string* path) {
  if (path->empty()) return;
  *path = (folder / *path).lexically_normal().string();
}

// "train.batch" when train.batch.micro was never written: the nearest place that was.
std::string Place(const std::string& file, std::string field, const FieldLines& lines) {
  while (true) {
    if (auto it = lines.find(field); it != lines.end()) return absl::StrCat(file, ":", it->second);
    const size_t dot = field.rfind('.');
    if (dot == std::string::npos) return absl::StrCat(file, ":1");
    field.resize(dot);
  }
}

}  // namespace

absl::StatusOr<v1::JobSpec> ReadJobSpecFile(const std::string& path, FieldLines* lines) {
  MP_ASSIGN_OR_RETURN(std::string text, ReadBounded(path));
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, ParseJobSpecYaml(text, path, lines));
  std::error_code error;
  const fs::path folder = fs::absolute(fs::path(path), error).parent_path();
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot resolve the folder of ", path, ": ", error.message()));
  }
  if (spec.name().empty()) spec.set_name(DefaultName(path));
  if (spec.has_data()) {
    MakeAbsolute(folder, spec.mutable_data()->mutable_train());
    MakeAbsolute(folder, spec.mutable_data()->mutable_validation());
    for (v1::TokenSource& source : *spec.mutable_data()->mutable_mixture()) {
      MakeAbsolute(folder, source.mutable_path());
    }
    for (v1::LabelSource& labels : *spec.mutable_data()->mutable_labels()) {
      MakeAbsolute(folder, labels.mutable_train());
      MakeAbsolute(folder, labels.mutable_validation());
    }
  }
  if (spec.has_train()) MakeAbsolute(folder, spec.mutable_train()->mutable_init_from());
  if (spec.train().has_offload()) {
    MakeAbsolute(folder, spec.mutable_train()->mutable_offload()->mutable_path());
  }
  if (spec.has_report()) MakeAbsolute(folder, spec.mutable_report()->mutable_tensorboard());
  return spec;
}

absl::StatusOr<v1::JobSpec> LoadJobSpec(const std::string& path) {
  FieldLines lines;
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, ReadJobSpecFile(path, &lines));
  NormalizeJobSpec(&spec);
  std::vector<std::string> problems;
  for (const FieldViolation& violation : CheckJobSpec(spec)) {
    problems.push_back(absl::StrCat(Place(path, violation.field, lines), ": ", violation.field,
                                    ": ", violation.message));
  }
  if (problems.empty()) return spec;
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace milepost
