#include "common/files/archive_rules.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace milepost {

absl::Status CheckArchivePath(absl::string_view path) {
  if (path.empty()) return absl::InvalidArgumentError("it has no name");
  if (path.size() > kMostArchivePath) {
    return absl::InvalidArgumentError(
        absl::StrCat("its path has ", path.size(), " bytes; at most ", kMostArchivePath));
  }
  if (absl::StrContains(path, '\0')) return absl::InvalidArgumentError("a zero byte in its name");
  if (path[0] == '/') return absl::InvalidArgumentError("its path is absolute");
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") return absl::InvalidArgumentError("'..' in its path");
    if (part.empty() || part == ".") {
      return absl::InvalidArgumentError("'.' or an empty part in its path");
    }
    if (part.size() > kMostArchiveName) {
      return absl::InvalidArgumentError(
          absl::StrCat("a name of ", part.size(), " bytes; at most ", kMostArchiveName));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckArchiveLink(absl::string_view path, absl::string_view target) {
  if (target.empty() || target.size() > kMostArchivePath || absl::StrContains(target, '\0')) {
    return absl::InvalidArgumentError(
        absl::StrCat("a link to a path of 1 to ", kMostArchivePath, " bytes is expected"));
  }
  if (target[0] == '/') return absl::InvalidArgumentError("it is a link to an absolute path");
  const auto above = std::count(path.begin(), path.end(), '/');
  int64_t up = 0;
  bool named = false;
  for (const absl::string_view part : absl::StrSplit(target, '/')) {
    if (part != "..") {
      named = named || (!part.empty() && part != ".");
      continue;
    }
    // Behind the name of another link it would lead somewhere else.
    if (named) return absl::InvalidArgumentError("it is a link with '..' behind a name");
    if (++up > above) return absl::InvalidArgumentError("it is a link that leaves the folder");
  }
  return absl::OkStatus();
}

}  // namespace milepost
