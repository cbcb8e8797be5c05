#include "worker/container/podman_run.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace milepost::worker {
namespace {

constexpr char kInitInside[] = "/run/milepost/container-init";

absl::StatusOr<std::vector<std::string>> VolumesOf(std::vector<ContainerMount> mounts) {
  std::map<std::string, ContainerMount> by_target;
  for (ContainerMount& mount : mounts) by_target[mount.target] = mount;
  std::vector<std::string> volumes;
  for (const auto& [target, mount] : by_target) {
    for (const std::string& path : {mount.source, target}) {
      if (!absl::StrContains(path, ':') && !absl::StrContains(path, ',')) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("a container cannot have ", path, ": its path has ':' or ','"));
    }
    volumes.push_back(
        absl::StrCat("--volume=", mount.source, ":", target, mount.read_only ? ":ro" : ":rw"));
  }
  return volumes;
}

std::vector<std::string> FixedArguments(const ContainerRun& run) {
  return PodmanArguments(
      {"run", absl::StrCat("--name=", run.name), "--replace", "--rm", "--pull=never",
       // As without a container: the network, shared memory, and where output goes.
       "--network=host", "--ipc=host", "--uts=host", "--log-driver=passthrough",
       // In the group that podman is in. Podman has such a container see no other processes.
       "--cgroups=disabled", absl::StrCat("--pidfile=", run.pid_file),
       // Nothing of systemd's, not even of the worker's unit.
       "--systemd=false", "--sdnotify=ignore", "--no-healthcheck",
       // Folders of the host are not relabelled.
       "--security-opt=label=disable",
       absl::StrCat("--ulimit=nofile=", run.open_files, ":", run.most_open_files),
       absl::StrCat("--ulimit=nproc=", run.most_processes, ":", run.most_processes),
       absl::StrCat("--user=", run.user, ":", run.group)});
}

}  // namespace

std::vector<std::string> PodmanArguments(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"podman", "--runtime=crun", "--cgroup-manager=cgroupfs"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

bool IsPodmansOwn(absl::string_view variable) {
  for (const absl::string_view own :
       {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SHELL", "LANG", "TZ", "NO_PROXY", "no_proxy",
        "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy",
        "ALL_PROXY", "all_proxy", "IFS", "BASH_ENV", "ENV",
        // Go's runtime.
        "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "GORACE", "GOCOVERDIR",
        // Registries'.
        "REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "DOCKER_HOST", "DOCKER_CERT_PATH",
        "DOCKER_TLS_VERIFY"}) {
    if (variable == own) return true;
  }
  for (const absl::string_view prefix :
       {"LD_AUDIT",   "LD_BIND_",    "LD_DEBUG",   "LD_DYNAMIC_", "LD_HWCAP_",  "LD_LIBRARY_",
        "LD_ORIGIN_", "LD_PRELOAD",  "LD_PROFILE", "LD_SHOW_",    "LD_TRACE_",  "LD_VERBOSE",
        "LD_WARN",    "GLIBC_",      "MALLOC_",    "LC_",         "XDG_",       "DBUS_",
        "SYSTEMD_",   "NOTIFY_",     "LISTEN_",    "CONTAINER",   "_CONTAINER", "PODMAN",
        "STORAGE_",   "REGISTRIES_", "BUILDAH_",   "CONMON_",     "CRUN_",      "_LIBPOD",
        "SSL_CERT_",  "OPENSSL_"}) {
    if (absl::StartsWith(variable, prefix)) return true;
  }
  return false;
}

absl::StatusOr<PodmanRun> PodmanRunOf(const ContainerRun& run) {
  PodmanRun podman = {.arguments = FixedArguments(run)};
  std::vector<std::string>& arguments = podman.arguments;
  // Not root: of the user's own processes alone. Files are the same user's and groups' inside.
  if (run.user != 0) {
    arguments.insert(arguments.end(), {"--userns=keep-id", "--group-add=keep-groups"});
  }
  std::vector<ContainerMount> mounts = run.mounts;
  mounts.push_back({run.init, kInitInside, /*read_only=*/true});
  absl::StatusOr<std::vector<std::string>> volumes = VolumesOf(std::move(mounts));
  if (!volumes.ok()) return volumes.status();
  arguments.insert(arguments.end(), volumes->begin(), volumes->end());
  for (const std::string& gpu : run.gpus) {
    arguments.push_back(absl::StrCat("--device=nvidia.com/gpu=", gpu));
  }
  const std::map<std::string, std::string> variables = [&] {
    std::map<std::string, std::string> last;
    for (const auto& [name, value] : run.environment) last[name] = value;
    return last;
  }();
  for (const auto& [name, value] : variables) {
    if (IsPodmansOwn(name)) {
      arguments.push_back(absl::StrCat("--env=", name, "=", value));
    } else {
      arguments.push_back(absl::StrCat("--env=", name));
      podman.environment.emplace_back(name, value);
    }
  }
  arguments.push_back(absl::StrCat("--workdir=", run.work_folder));
  // In place of the image's own, whatever that is. As JSON it cannot be misread.
  arguments.push_back(absl::StrCat("--entrypoint=", nlohmann::json({kInitInside}).dump()));
  arguments.insert(arguments.end(), {run.image, run.folder});
  arguments.insert(arguments.end(), run.command.begin(), run.command.end());
  return podman;
}

std::vector<std::string> PodmanRemoveArguments(const std::vector<std::string>& names) {
  std::vector<std::string> arguments = {"rm", "--force", "--ignore", "--time=0", "--"};
  arguments.insert(arguments.end(), names.begin(), names.end());
  return PodmanArguments(arguments);
}

}  // namespace milepost::worker
