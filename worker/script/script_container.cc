#include "worker/script/script_container.h"

#include <spdlog/spdlog.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "worker/container/podman.h"
#include "worker/container/podman_run.h"

namespace milepost::worker {
namespace {

// Podman sets a lower limit than a larger one that it inherits.
constexpr uint64_t kMostOfPodman = 1 << 20;

absl::Status CheckMounts(const v1::ScriptSpec& script) {
  for (const std::string& text : script.container().mounts()) {
    MP_ASSIGN_OR_RETURN(const ContainerMount mount, ParseContainerMount(text));
    std::error_code error;
    if (std::filesystem::exists(mount.source, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("script.container.mounts: ", mount.source,
                     error ? absl::StrCat(": ", error.message()) : " is not there on this host"));
  }
  return absl::OkStatus();
}

uint64_t MostProcesses() {
  rlimit limit = {};
  getrlimit(RLIMIT_NPROC, &limit);
  uint64_t most = kMostOfPodman;
  std::ifstream("/proc/sys/kernel/pid_max") >> most;
  return std::min({static_cast<uint64_t>(limit.rlim_max), most, kMostOfPodman});
}

// Those of this process that speak of the rank, and not of the host's programs.
Variables OwnVariables() {
  Variables variables;
  for (const char* name : {"OMP_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "TMPDIR"}) {
    if (const char* value = std::getenv(name); value != nullptr) {
      variables.emplace_back(name, value);
    }
  }
  return variables;
}

// The same on every host: the image lacks the program, or it is none.
bool IsOfCommand(int error) {
  constexpr int kOfCommand[] = {ENOENT, EACCES, ENOEXEC, ENOTDIR,
                                EISDIR, ELOOP,  E2BIG,   ENAMETOOLONG};
  return std::find(std::begin(kOfCommand), std::end(kOfCommand), error) != std::end(kOfCommand);
}

}  // namespace

std::vector<ContainerMount> MountsOf(const v1::ScriptSpec& script, const ContainerPlaces& places) {
  const auto same = [](const std::string& path, bool read_only) {
    return ContainerMount{path, path, read_only};
  };
  std::vector<ContainerMount> mounts = {same(places.temporary_files, false),
                                        same(places.folder, places.read_only)};
  if (!places.package.empty()) mounts.push_back(same(places.package, true));
  for (const std::string& text : script.container().mounts()) {
    if (auto mount = ParseContainerMount(text); mount.ok()) mounts.push_back(*std::move(mount));
  }
  // Last: nothing of the user's may take its place.
  mounts.push_back(same(places.scratch, false));
  return mounts;
}

ContainedEnd EndOf(const ExitResult& podman, const CommandEnd& command, const std::string& program,
                   bool late) {
  switch (command.kind) {
    case CommandEnd::kEnded:
      return {.result = command.result};
    case CommandEnd::kCannotStart:
      return {.failure = TrainerExit{
                  .code = IsOfCommand(command.error) ? kExitUsage : kExitError,
                  .failure_class =
                      IsOfCommand(command.error) ? v1::FAILURE_CLASS_USER : v1::FAILURE_CLASS_HOST,
                  .message = absl::StrCat("script.command: ", program,
                                          " in the container: ", strerror(command.error))}};
    case CommandEnd::kStarted:
      return {.result = {.signal = SIGKILL}};
    case CommandEnd::kNotTried:
      break;
  }
  const std::string how =
      late ? absl::StrCat("not within ", absl::FormatDuration(kContainerTime)) : podman.ToString();
  return {.result = podman,
          .failure =
              TrainerExit{.code = kExitError,
                          .failure_class = v1::FAILURE_CLASS_HOST,
                          .message = absl::StrCat("podman did not run the container (", how, ")"),
                          .with_last_line = true}};
}

absl::StatusOr<ScriptContainer> ScriptContainer::Prepare(const v1::ScriptSpec& script,
                                                         ContainerPlaces places) {
  MP_RETURN_IF_ERROR(FindPodman().status());
  MP_RETURN_IF_ERROR(CheckMounts(script));
  if (access(places.init.c_str(), X_OK) != 0) {
    return absl::InternalError(absl::StrCat("script.container: ", places.init,
                                            " is not there: it belongs beside milepost-trainer"));
  }
  const ImageOptions options = {.temporary_files = places.temporary_files,
                                .give_up = places.give_up};
  MP_ASSIGN_OR_RETURN(ContainerImage image, BringImage(script.container().image(), options));
  spdlog::info("script.container: {} is {}", script.container().image(), image.id);
  absl::StatusOr<ContainerControl> control = ContainerControl::Make(places.scratch);
  if (!control.ok()) return absl::InternalError(control.status().message());
  return ScriptContainer(script, std::move(places), std::move(image), *std::move(control));
}

std::string ScriptContainer::Variable(absl::string_view name) const {
  for (const auto& [own, value] : image_.environment) {
    if (own == name) return value;
  }
  return "";
}

absl::StatusOr<ScriptOptions> ScriptContainer::Options(ScriptOptions inside,
                                                       const std::vector<std::string>& gpus) const {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  ContainerRun run = {.name = places_.name,
                      .image = image_.id,
                      .init = places_.init,
                      .folder = control_.folder(),
                      .pid_file = control_.pid_file(),
                      .command = std::move(inside.command),
                      .work_folder = places_.folder,
                      .environment = OwnVariables(),
                      .mounts = MountsOf(script_, places_),
                      .gpus = gpus,
                      .user = geteuid(),
                      .group = getegid(),
                      .open_files = std::min<uint64_t>(files.rlim_cur, kMostOfPodman),
                      .most_open_files = std::min<uint64_t>(files.rlim_max, kMostOfPodman),
                      .most_processes = MostProcesses()};
  // The user's own home is not in there, and the image's is another user's.
  if (run.user != 0) run.environment.emplace_back("HOME", absl::StrCat(places_.scratch, "/work"));
  run.environment.insert(run.environment.end(), inside.environment.begin(),
                         inside.environment.end());
  MP_ASSIGN_OR_RETURN(PodmanRun podman, PodmanRunOf(run));
  inside.command = std::move(podman.arguments);
  inside.environment = std::move(podman.environment);
  return inside;
}

std::string ScriptContainer::ProcessFolder() const {
  return absl::StrCat("/proc/", control_.pid(), "/root/proc");
}

ContainedEnd ScriptContainer::End(const ExitResult& podman, bool late) const {
  return EndOf(podman, control_.End(), script_.command(0), late);
}

}  // namespace milepost::worker
