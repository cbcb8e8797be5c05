#include "worker/agent/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/poll.h"
#include "worker/agent/exit_class.h"

namespace milepost::worker {

namespace {

constexpr char kNoGpu[] = "-";

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// 0: there is no such process.
uint64_t StartTicks(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(file, text)) return 0;
  const size_t name_end = text.rfind(") ");  // the name may have anything in it
  if (name_end == std::string::npos) return 0;
  // From the third field on; the start time is the 22nd.
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(text).substr(name_end + 2), ' ');
  uint64_t ticks = 0;
  return fields.size() > 19 && absl::SimpleAtoi(fields[19], &ticks) ? ticks : 0;
}

// Of a process that has not ended, all its threads with it; else empty.
UniqueFd Open(pid_t pid, uint64_t start_ticks) {
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  // Looked at after it was opened: the descriptor stays that process's.
  if (!fd.ok() || StartTicks(pid) != start_ticks) return UniqueFd();
  if (PollFd(fd.get(), POLLIN, absl::InfinitePast())) return UniqueFd();
  return fd;
}

}  // namespace

std::vector<v1::RankReport> Leftovers::Load(const std::map<std::string, int>& slots) {
  std::vector<v1::RankReport> reports;
  std::ifstream file(path_);
  if (!file && errno != ENOENT) spdlog::warn("cannot read {}: {}", path_, strerror(errno));
  std::string line;
  std::getline(file, line);
  if (line != BootId()) return reports;
  while (std::getline(file, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    Process process;
    const bool good = words.size() == 7 && absl::SimpleAtoi(words[1], &process.key.generation) &&
                      absl::SimpleAtoi(words[2], &process.key.rank) &&
                      absl::SimpleAtoi(words[3], &process.slot) &&
                      absl::SimpleAtoi(words[5], &process.pid) &&
                      absl::SimpleAtoi(words[6], &process.start_ticks);
    if (!good || process.pid <= 0 || process.start_ticks == 0) continue;
    process.key.job = words[0];
    process.gpu = words[4];
    UniqueFd pidfd = Open(process.pid, process.start_ticks);
    if (!pidfd.ok() && !IsHeld(process.key)) {
      unlink(LockPath(process.key).c_str());
      continue;
    }
    if (pidfd.ok()) (void)syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
    spdlog::error(
        "pid {}, rank {} of {} generation {}, has outlived the worker that had started it ({}): "
        "its slot is not free before it has ended; `dmesg` may tell what it waits for",
        process.pid, process.key.rank, process.key.job, process.key.generation,
        pidfd.ok() ? ProcessState(process.pid) : "in another container, which has to end it");
    const auto slot = slots.find(process.gpu);
    const bool offered = process.gpu == kNoGpu || slot != slots.end();
    if (process.gpu != kNoGpu) process.slot = offered ? slot->second : -1;
    Left left = {process, std::move(pidfd),
                 NewRankReport(process.key, process.slot, v1::RANK_STATE_STARTING)};
    if (offered) reports.push_back(left.report);
    left_[process.key] = std::move(left);
  }
  return reports;
}

std::string Leftovers::LockPath(const RankKey& key) const {
  const std::string job = absl::StrReplaceAll(key.job, {{"/", "-"}});
  return absl::StrCat(data_dir_, "/rank-lock-", job, "-", key.generation, "-", key.rank);
}

absl::StatusOr<UniqueFd> Leftovers::Hold(const v1::StartRank& start) const {
  const std::string path = LockPath(KeyOf(start));
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.ok() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot open and lock ", path));
}

bool Leftovers::IsHeld(const RankKey& key) const {
  const UniqueFd lock(open(LockPath(key).c_str(), O_RDWR | O_CLOEXEC));
  return lock.ok() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool Leftovers::HasUnseen() const {
  return std::any_of(left_.begin(), left_.end(),
                     [](const auto& left) { return !left.second.pidfd.ok(); });
}

void Leftovers::Started(const v1::StartRank& start, const std::string& gpu, pid_t pid) {
  const RankKey key = KeyOf(start);
  running_[key] = {key, start.slot(), gpu.empty() ? kNoGpu : gpu, pid, StartTicks(pid)};
  Write();
}

void Leftovers::Ended(const RankKey& key) {
  unlink(LockPath(key).c_str());
  if (running_.erase(key) > 0) Write();
}

std::vector<int> Leftovers::Slots() const {
  std::vector<int> slots;
  for (const auto& [key, left] : left_) slots.push_back(left.process.slot);
  return slots;
}

void Leftovers::AddPollEntries(std::vector<pollfd>& entries) const {
  for (const auto& [key, left] : left_) {
    if (left.pidfd.ok()) entries.push_back({left.pidfd.get(), POLLIN, 0});
  }
}

std::vector<v1::RankReport> Leftovers::TakeEnded() {
  std::vector<v1::RankReport> reports;
  for (auto it = left_.begin(); it != left_.end();) {
    const Left& left = it->second;
    const bool ended = left.pidfd.ok() ? PollFd(left.pidfd.get(), POLLIN, absl::InfinitePast())
                                       : !IsHeld(it->first);
    if (!ended) {
      ++it;
      continue;
    }
    v1::RankReport report =
        NewRankReport(it->first, it->second.process.slot, v1::RANK_STATE_FAILED);
    report.set_failure_class(v1::FAILURE_CLASS_HOST);
    report.set_signal(SIGKILL);
    report.set_message("its process outlived its worker, and has ended now");
    reports.push_back(std::move(report));
    it = left_.erase(it);
  }
  if (!reports.empty()) Write();
  return reports;
}

// Without a sync: after a crash of the host there are no processes to know of.
void Leftovers::Write() const {
  const std::string temporary = path_ + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << BootId() << "\n";
    const auto write = [&](const Process& process) {
      file << process.key.job << " " << process.key.generation << " " << process.key.rank << " "
           << process.slot << " " << process.gpu << " " << process.pid << " " << process.start_ticks
           << "\n";
    };
    for (const auto& [key, process] : running_) write(process);
    for (const auto& [key, left] : left_) write(left.process);
    file.flush();
    if (file && rename(temporary.c_str(), path_.c_str()) == 0) return;
  }
  spdlog::warn("cannot write {}: {}: should this worker end, it will not know of ranks that do not",
               path_, strerror(errno));
}

}  // namespace milepost::worker
