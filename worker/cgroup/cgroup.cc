#include "worker/cgroup/cgroup.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "worker/cgroup/cgroup_files.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kBetweenKills = absl::Milliseconds(10);
// What v1 says where there is no limit: the largest number of whole pages.
constexpr int64_t kNoLimit = int64_t{1} << 60;
// The kernel charges some pages at a time, so the last of them may stay unused.
constexpr int64_t kNearly = 1 << 20;

// The folder and those below it, the deepest first.
std::vector<std::string> WithSubfolders(const std::string& folder) {
  std::vector<std::string> folders;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored) || entry->is_symlink(ignored)) continue;
    const std::vector<std::string> below = WithSubfolders(entry->path());
    folders.insert(folders.end(), below.begin(), below.end());
  }
  folders.push_back(folder);
  return folders;
}

absl::Status LimitMemory(const std::string& folder, int64_t bytes) {
  const std::string text = absl::StrCat(bytes);
  if (HasCgroupFile(folder + "/memory.max")) {
    // Memory and swap together are to have `bytes`, so none of it is swap. A kernel without
    // accounting of swap has no such file.
    WriteCgroupFile(folder + "/memory.swap.max", "0").IgnoreError();
    // A rank that has lost a process often waits for it without end. Kernels before 4.19 do not
    // know this file.
    WriteCgroupFile(folder + "/memory.oom.group", "1").IgnoreError();
    return WriteCgroupFile(folder + "/memory.max", text);
  }
  if (!HasCgroupFile(folder + "/memory.limit_in_bytes")) return absl::OkStatus();
  MP_RETURN_IF_ERROR(WriteCgroupFile(folder + "/memory.limit_in_bytes", text));
  WriteCgroupFile(folder + "/memory.memsw.limit_in_bytes", text).IgnoreError();  // likewise
  return absl::OkStatus();
}

void ReadMemory(const std::string& folder, CgroupRecord* record) {
  if (HasCgroupFile(folder + "/memory.max")) {
    record->memory_limit = CgroupNumber(folder + "/memory.max");
    record->memory_peak = CgroupNumber(folder + "/memory.peak");
    record->oom_kills = CgroupField(folder + "/memory.events", "oom_kill");
    record->memory_limit_hit = CgroupField(folder + "/memory.events", "oom") > 0;
  } else if (HasCgroupFile(folder + "/memory.limit_in_bytes")) {
    const int64_t limit = CgroupNumber(folder + "/memory.limit_in_bytes");
    record->memory_limit = limit < kNoLimit ? limit : 0;
    record->memory_peak = CgroupNumber(folder + "/memory.max_usage_in_bytes");
    record->oom_kills = CgroupField(folder + "/memory.oom_control", "oom_kill");
    // memory.failcnt is not counted by every kernel: Linux 6.18 leaves it at 0.
    const int64_t most =
        std::max(record->memory_peak, CgroupNumber(folder + "/memory.memsw.max_usage_in_bytes"));
    record->memory_limit_hit = record->memory_limit > 0 && most + kNearly >= record->memory_limit;
  }
}

}  // namespace

std::vector<std::string> Cgroup::JoinFiles() const {
  std::vector<std::string> files;
  for (const std::string& folder : folders_) files.push_back(folder + "/cgroup.procs");
  return files;
}

absl::Status Cgroup::Limit(const CgroupLimits& limits) const {
  for (const std::string& folder : folders_) {
    if (limits.memory_bytes > 0) MP_RETURN_IF_ERROR(LimitMemory(folder, limits.memory_bytes));
    if (limits.processes > 0 && HasCgroupFile(folder + "/pids.max")) {
      MP_RETURN_IF_ERROR(WriteCgroupFile(folder + "/pids.max", absl::StrCat(limits.processes)));
    }
  }
  return absl::OkStatus();
}

CgroupRecord Cgroup::Read() const {
  CgroupRecord record;
  for (const std::string& folder : folders_) {
    ReadMemory(folder, &record);
    if (!HasCgroupFile(folder + "/pids.max")) continue;
    record.process_limit = CgroupNumber(folder + "/pids.max");
    record.processes_refused = CgroupField(folder + "/pids.events", "max");
  }
  return record;
}

std::vector<pid_t> Cgroup::Processes() const {
  std::vector<pid_t> processes;
  for (const std::string& folder : folders_) {
    for (const std::string& each : WithSubfolders(folder)) {
      const std::vector<pid_t> more = CgroupProcesses(each);
      processes.insert(processes.end(), more.begin(), more.end());
    }
  }
  std::sort(processes.begin(), processes.end());
  processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
  return processes;
}

void Cgroup::Kill() const {
  bool all = true;
  for (const std::string& folder : folders_) {
    // The kernel's own way, since 5.14 and with v2 alone, which no fork escapes.
    if (WriteCgroupFile(folder + "/cgroup.kill", "1").ok()) continue;
    // Otherwise a process that forks without end could always be one ahead.
    WriteCgroupFile(folder + "/pids.max", "0").IgnoreError();
    all = false;
  }
  if (all) return;
  for (const pid_t pid : Processes()) {
    // 0: a process that this one cannot see.
    if (pid > 1 && pid != getpid()) kill(pid, SIGKILL);
  }
}

bool Cgroup::End(absl::Duration most) const {
  const absl::Time deadline = SteadyNow() + most;
  while (!Processes().empty()) {
    Kill();
    if (SteadyNow() >= deadline) return Processes().empty();
    absl::SleepFor(kBetweenKills);
  }
  return true;
}

bool Cgroup::Remove() const {
  bool removed = true;
  for (const std::string& folder : folders_) {
    for (const std::string& each : WithSubfolders(folder)) {
      if (rmdir(each.c_str()) != 0 && errno != ENOENT) removed = false;
    }
  }
  return removed;
}

}  // namespace milepost::worker
