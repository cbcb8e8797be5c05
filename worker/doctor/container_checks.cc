#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/regular_file.h"
#include "worker/container/podman.h"
#include "worker/doctor/checks.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kPodmanTime = absl::Seconds(20);
constexpr size_t kMostCdiBytes = 4 << 20;

std::string TextAt(const nlohmann::json& json, const char* pointer) {
  const nlohmann::json::json_pointer path(pointer);
  return json.contains(path) && json[path].is_string() ? json[path].get<std::string>() : "?";
}

// Ranks name their GPUs by UUID.
bool DescribesGpusByUuid(const std::string& root) {
  for (const char* folder : {"/etc/cdi", "/var/run/cdi"}) {
    std::error_code error;
    for (fs::directory_iterator entry(root + folder, error), end; !error && entry != end;
         entry.increment(error)) {
      const auto text = ReadRegularFile(entry->path(), kMostCdiBytes);
      if (text.ok() && absl::StrContains(*text, "nvidia.com/gpu") &&
          absl::StrContains(*text, "GPU-")) {
        return true;
      }
    }
  }
  return false;
}

Findings AskedPodman() {
  const absl::StatusOr<PodmanAnswer> answer =
      AskPodman({"info", "--format=json"}, {.patience = kPodmanTime});
  const bool works = answer.ok() && answer->end.success();
  if (works) return PodmanFindings(answer->out, geteuid() == 0);
  return {Warn("podman",
               answer.ok() ? PodmanError(answer->err) : std::string(answer.status().message()),
               "`podman info` has to work for the worker's user: docs/operate/workers.md")};
}

}  // namespace

Findings PodmanFindings(const std::string& info, bool root_user) {
  const auto json = nlohmann::json::parse(info, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {Warn("podman", "`podman info` says no JSON", "update podman")};
  const std::string text = absl::StrCat(
      TextAt(json, "/version/Version"), ", images in ", TextAt(json, "/store/graphRoot"), " (",
      TextAt(json, "/store/graphDriverName"), "): can run scripts in containers");
  const nlohmann::json::json_pointer map("/host/idMappings/uidmap");
  const bool ranges = json.contains(map) && json[map].is_array() && json[map].size() > 1;
  if (!root_user && !ranges) {
    return {
        Warn("podman", absl::StrCat(text, "; /etc/subuid has no range for this user"),
             "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER: images have "
             "files of several users")};
  }
  return {Ok("podman", text)};
}

Findings CheckContainers(bool gpus, const std::string& root) {
  if (!FindPodman().ok())
    return {Ok("podman", "not here; only jobs with script.container need it")};
  Findings findings = AskedPodman();
  if (gpus && !DescribesGpusByUuid(root)) {
    findings.push_back(Warn("CDI", "no file in /etc/cdi describes the GPUs by their UUIDs",
                            "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml "
                            "--device-name-strategy=uuid: podman gives GPUs to containers by it"));
  }
  return findings;
}

}  // namespace milepost::worker
