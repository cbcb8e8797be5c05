#include "common/spec/path_roots.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/paths.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::vector<std::string>> Folders(const char* flag,
                                                 const std::vector<std::string>& given) {
  std::vector<std::string> folders;
  for (const std::string& folder : given) {
    std::error_code error;
    const fs::path path = fs::canonical(folder, error);
    if (error || !fs::path(folder).is_absolute() || !fs::is_directory(path, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", folder, ": ", error ? error.message() : "not a folder",
                       "; give the absolute path of a folder that is there"));
    }
    folders.push_back(path.string());
  }
  return folders;
}

bool IsWithin(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

absl::Status CheckPath(absl::string_view field, const std::string& path, const char* flag,
                       const std::vector<std::string>& folders) {
  if (path.empty() || folders.empty()) return absl::OkStatus();
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  // What is left of a link in it leads nowhere yet.
  fs::path prefix;
  bool dangles = false;
  for (const fs::path& part : real) {
    prefix /= part;
    std::error_code ignored;
    dangles = dangles || fs::is_symlink(fs::symlink_status(prefix, ignored));
  }
  const bool within = !error && !dangles &&
                      std::any_of(folders.begin(), folders.end(),
                                  [&](const auto& one) { return IsWithin(real, one); });
  if (within) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", path, " is not in a folder that this worker's operator allows (",
                   flag, " ", absl::StrJoin(folders, ","), ")"));
}

}  // namespace

absl::StatusOr<PathRoots> MakePathRoots(const std::vector<std::string>& write,
                                        const std::vector<std::string>& data) {
  PathRoots roots;
  MP_ASSIGN_OR_RETURN(roots.write, Folders("--write-roots", write));
  MP_ASSIGN_OR_RETURN(roots.data, Folders("--data-roots", data));
  return roots;
}

absl::Status CheckPaths(const v1::JobSpec& spec, const PathRoots& roots) {
  std::vector<std::string> readable = roots.data;
  if (!readable.empty()) readable.insert(readable.end(), roots.write.begin(), roots.write.end());
  v1::JobSpec looked_at = spec;
  absl::Status status;
  ForEachPath(&looked_at, [&](absl::string_view field, PathUse use, std::string* path) {
    const bool writes = use == PathUse::kWrite;
    status.Update(CheckPath(field, *path, writes ? "--write-roots" : "--data-roots",
                            writes ? roots.write : readable));
  });
  return status;
}

}  // namespace milepost
