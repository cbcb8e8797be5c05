#include "common/spec/container.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

constexpr size_t kMostMountPath = 1024;

absl::StatusOr<std::string> MountPath(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  const bool leaves = std::find(parts.begin(), parts.end(), "..") != parts.end();
  const bool hard =
      std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == ','; });
  if (text.empty() || text[0] != '/' || leaves || hard || text.size() > kMostMountPath) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(text.substr(0, 64)),
                     "' must be an absolute path without '..', ',' and ':'"));
  }
  std::string path = std::filesystem::path(std::string(text)).lexically_normal().string();
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

absl::StatusOr<ContainerMount> ParseContainerMount(absl::string_view text) {
  std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  ContainerMount mount;
  if (parts.size() > 1 && (parts.back() == "ro" || parts.back() == "rw")) {
    mount.read_only = parts.back() == "ro";
    parts.pop_back();
  }
  if (parts.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(text.substr(0, 128)),
                     "' is none of /data, /data:ro, /data:/mnt and /data:/mnt:ro"));
  }
  MP_ASSIGN_OR_RETURN(mount.source, MountPath(parts.front()));
  MP_ASSIGN_OR_RETURN(mount.target, MountPath(parts.back()));
  if (mount.target == "/") {
    return absl::InvalidArgumentError("nothing of the image would be left below '/'");
  }
  for (const absl::string_view own : {"/proc", "/sys", "/dev", "/run/milepost"}) {
    absl::string_view rest = mount.target;
    if (!absl::ConsumePrefix(&rest, own) || (!rest.empty() && rest[0] != '/')) continue;
    return absl::InvalidArgumentError(absl::StrCat("in a container ", own, " is its own"));
  }
  if (mount.target == "/run") {
    return absl::InvalidArgumentError("in a container /run/milepost is its own");
  }
  return mount;
}

absl::string_view PathOfImage(absl::string_view image) {
  for (const absl::string_view kind : {"oci-archive:", "docker-archive:", "oci:", "dir:"}) {
    if (absl::ConsumePrefix(&image, kind)) return image;
  }
  return "";
}

}  // namespace milepost
