#include "worker/script/script_process.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(20);
constexpr char kUsualPath[] = "/usr/local/bin:/usr/bin:/bin";

bool IsProgram(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

absl::StatusOr<std::string> ProgramOf(const ScriptOptions& options) {
  const std::string& name = options.command[0];
  if (absl::StrContains(name, '/')) {
    const std::string path = name[0] == '/' ? name : absl::StrCat(options.folder, "/", name);
    if (IsProgram(path)) return path;
    std::error_code error;
    return absl::InvalidArgumentError(
        absl::StrCat("script.command: ", path,
                     fs::exists(path, error) ? " is no program that this worker's user may run"
                                             : " is not there on this host"));
  }
  const std::string path = PathWith(options.environment);
  for (const absl::string_view folder : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    std::string program = absl::StrCat(folder, "/", name);
    if (IsProgram(program)) return program;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("script.command: no program ", name, " in this host's PATH (", path, ")"));
}

absl::Status CheckFolder(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("script.folder: ", folder, " is not there on this host, or is no folder"));
}

// The kernel may have refused it.
void CheckJoined(const Cgroup& cgroup, Subprocess& process) {
  for (const std::string& folder : cgroup.folders()) {
    const std::vector<pid_t> inside = Cgroup({folder}).Processes();
    if (std::find(inside.begin(), inside.end(), process.pid()) != inside.end()) continue;
    if (process.Wait(absl::InfinitePast()).ok()) return;  // it has ended already
    spdlog::warn("the script is not in its control group {}: its limits do not count", folder);
  }
}

// The parent of a process; 0: it has gone.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(file, text)) return 0;
  const size_t name_end = text.rfind(") ");  // the name may have anything in it
  if (name_end == std::string::npos) return 0;
  // The state, then the parent.
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(name_end + 2), absl::MaxSplits(' ', 2));
  pid_t parent = 0;
  return fields.size() > 1 && absl::SimpleAtoi(fields[1], &parent) ? parent : 0;
}

std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &pid)) continue;
    if (ParentOf(pid) == getpid()) children.push_back(pid);
  }
  return children;
}

}  // namespace

std::string PathWith(const std::vector<std::pair<std::string, std::string>>& environment) {
  std::string path;
  if (const char* own = std::getenv("PATH"); own != nullptr) path = own;
  for (const auto& [name, value] : environment) {
    if (name == "PATH") path = value;
  }
  return path.empty() ? kUsualPath : path;
}

absl::StatusOr<ScriptProcess> ScriptProcess::Start(ScriptOptions options) {
  MP_RETURN_IF_ERROR(CheckFolder(options.folder));
  MP_ASSIGN_OR_RETURN(const std::string program, ProgramOf(options));
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return absl::ErrnoToStatus(errno, "cannot look after what a script leaves");
  }
  SpawnOptions spawn;
  spawn.argv = std::move(options.command);
  spawn.program = program;
  spawn.env = std::move(options.environment);
  spawn.folder = std::move(options.folder);
  // In this process's group, which the worker ends as a whole.
  spawn.own_process_group = false;
  if (options.held >= 0) spawn.fds = {{options.held, options.held}};
  spawn.cgroup_files = options.cgroup.JoinFiles();
  auto process = Subprocess::Spawn(std::move(spawn));
  if (process.ok()) {
    CheckJoined(options.cgroup, *process);
    return ScriptProcess(*std::move(process));
  }
  // Such as a script without "#!", or an interpreter that is not there.
  const absl::Status& status = process.status();
  const bool users = absl::IsNotFound(status) || absl::IsPermissionDenied(status) ||
                     absl::StrContains(status.message(), "format");
  return users ? absl::InvalidArgumentError(absl::StrCat("script.command: ", status.message()))
               : status;
}

int ScriptProcess::EndDescendants(absl::Duration most) {
  int ended = 0;
  const absl::Time deadline = SteadyNow() + most;
  while (true) {
    const std::vector<pid_t> children = Children();
    for (const pid_t pid : children) kill(pid, SIGKILL);
    int reaped = 0;
    while (waitpid(-1, nullptr, WNOHANG) > 0) ++reaped;
    ended += reaped;
    // Theirs come to this process when they end.
    if ((children.empty() && reaped == 0) || SteadyNow() >= deadline) return ended;
    absl::SleepFor(kBetweenLooks);
  }
}

}  // namespace milepost::worker
