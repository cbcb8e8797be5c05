// The checks of the container that a script runs in.
#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/checker.h"
#include "common/spec/container.h"

namespace milepost {
namespace {

constexpr size_t kMostImageBytes = 512;
constexpr int kMostMounts = 64;

// Podman says whether there is such an image; here is said what can be none.
bool MayBeImage(const std::string& image) {
  if (image.size() > kMostImageBytes || image[0] == '-' || image.back() == ':') return false;
  return std::all_of(image.begin(), image.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("._-/:@+=~", c);
  });
}

void CheckImage(const std::string& image, Checker* check) {
  const char* field = "script.container.image";
  if (image.empty()) {
    return check->Add(field, "required: an image, such as docker.io/pytorch/pytorch:2.9.0");
  }
  if (!MayBeImage(image)) {
    return check->Add(field, absl::StrCat("'", absl::CHexEscape(image.substr(0, 64)),
                                          "' is no image's name: registry/name:tag, "
                                          "registry/name@sha256:..., or oci-archive:/path"));
  }
  for (const absl::string_view transport :
       {"tarball:", "sif:", "docker-daemon:", "containers-storage:"}) {
    if (absl::StartsWith(image, transport)) {
      return check->Add(field, absl::StrCat("'", transport,
                                            "' is none of docker://, oci-archive:, "
                                            "docker-archive:, oci: and dir:"));
    }
  }
  const absl::string_view path = PathOfImage(image);
  const bool archive = absl::StrContains(image, ":/") && image[0] != '/';
  if (!path.empty() && path[0] != '/') {
    check->Add(field, absl::StrCat("'", path, "': expected an absolute path"));
  } else if (path.empty() && archive && !absl::StartsWith(image, "docker://")) {
    check->Add(field, absl::StrCat("'", image.substr(0, 64),
                                   "': paths are those of oci-archive:, docker-archive:, oci: and "
                                   "dir:"));
  }
}

void CheckMounts(const v1::ScriptSpec& script, Checker* check) {
  const char* field = "script.container.mounts";
  if (script.container().mounts_size() > kMostMounts) {
    return check->Add(
        field, absl::StrCat("has ", script.container().mounts_size(), "; at most ", kMostMounts));
  }
  std::set<std::string> targets;
  for (const std::string& text : script.container().mounts()) {
    const absl::StatusOr<ContainerMount> mount = ParseContainerMount(text);
    if (!mount.ok()) {
      check->Add(field, std::string(mount.status().message()));
    } else if (!targets.insert(mount->target).second) {
      check->Add(field, absl::StrCat("two of them are at ", mount->target, ": keep one"));
    }
  }
}

}  // namespace

void CheckContainer(const v1::ScriptSpec& script, Checker* check) {
  if (!script.has_container()) return;
  CheckImage(script.container().image(), check);
  CheckMounts(script, check);
  if (!script.requirements().empty()) {
    check->Add(
        "script.requirements",
        "are for scripts on the host itself: the image of script.container has to have them");
  }
  if (script.folder() == "/") {
    check->Add("script.folder", "in a container '/' is the image's own: name a folder below it");
  }
  if (absl::StrContains(script.folder(), ':')) {
    check->Add("script.folder", "a container cannot have a folder with ':' in its path");
  }
}

}  // namespace milepost
