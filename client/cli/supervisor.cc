#include "client/cli/supervisor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/local_coordinator.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr absl::Duration kLongLife = absl::Seconds(2);
constexpr absl::Duration kFirstDelay = absl::Milliseconds(20);
constexpr absl::Duration kLongestDelay = absl::Seconds(2);
constexpr int kShortLives = 8;
constexpr int64_t kLogLimit = 8 << 20;

}  // namespace

std::optional<absl::Duration> RestartPolicy::OnExit(absl::Duration lived, const ExitResult& end) {
  const bool long_life = lived >= kLongLife;
  proven_ = proven_ || long_life;
  if (!proven_ && end.signal == 0) return std::nullopt;
  short_lives_ = long_life ? 0 : short_lives_ + 1;
  if (short_lives_ > kShortLives) return std::nullopt;
  const int doublings = std::max(short_lives_ - 1, 0);
  return std::min(kFirstDelay * (1 << doublings), kLongestDelay);
}

absl::Status Supervisor::Spawn(Process* process, absl::Time now) {
  SpawnOptions options;
  options.argv = process->spec.argv;
  options.out = Redirect::File(process->spec.log);
  options.err = options.out;
  options.fds = {{3, lock_fd_}};
  options.death_signal = process->spec.death_signal;
  MP_ASSIGN_OR_RETURN(Subprocess child, Subprocess::Spawn(std::move(options)));
  process->child.emplace(std::move(child));
  process->started = now;
  process->restart_at = absl::InfiniteFuture();
  return absl::OkStatus();
}

absl::Status Supervisor::Start(ProcessSpec spec, absl::Time now) {
  BoundLog(spec.log, kLogLimit);
  const std::vector<std::string> always = spec.argv;
  Process process;
  process.spec = std::move(spec);
  process.spec.argv.insert(process.spec.argv.end(), process.spec.first.begin(),
                           process.spec.first.end());
  MP_RETURN_IF_ERROR(Spawn(&process, now));
  process.spec.argv = always;
  processes_.push_back(std::move(process));
  return absl::OkStatus();
}

absl::Status Supervisor::GaveUp(const Process& process, const ExitResult& end) const {
  const std::vector<std::string> lines = LastWords(process.spec.log, 3);
  return absl::AbortedError(absl::StrCat(process.spec.name, " ended with ", end.ToString(),
                                         " and is not started again; its log (", process.spec.log,
                                         ") ends:\n  ", absl::StrJoin(lines, "\n  ")));
}

// Whatever is wrong with one, the others are looked after: whoever stops them waits for their ends.
absl::Status Supervisor::Tick(absl::Time now, std::vector<ProcessEvent>* events) {
  absl::Status status;
  for (Process& process : processes_) {
    if (process.child) status.Update(Reap(&process, now, events));
    if (process.child || process.stopping || process.restart_at > now) continue;
    process.restart_at = absl::InfiniteFuture();  // what does not start is not tried again
    status.Update(Spawn(&process, now));
  }
  return status;
}

absl::Status Supervisor::Reap(Process* process, absl::Time now, std::vector<ProcessEvent>* events) {
  const auto end = process->child->Wait(absl::InfinitePast());
  if (!end.ok()) return absl::OkStatus();  // DEADLINE_EXCEEDED: it lives
  process->child.reset();
  if (process->stopping) return absl::OkStatus();
  const auto delay = process->policy.OnExit(now - process->started, *end);
  if (!delay) return GaveUp(*process, *end);
  process->restart_at = now + *delay;
  events->push_back({process->spec.name, *end, *delay});
  return absl::OkStatus();
}

absl::Time Supervisor::NextTime() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Process& process : processes_) {
    if (!process.stopping) next = std::min(next, process.restart_at);
  }
  return next;
}

std::vector<int> Supervisor::pidfds() const {
  std::vector<int> fds;
  for (const Process& process : processes_) {
    if (process.child) fds.push_back(process.child->pidfd());
  }
  return fds;
}

void Supervisor::Stop(const std::string& prefix, int signal) {
  for (Process& process : processes_) {
    if (!absl::StartsWith(process.spec.name, prefix)) continue;
    process.stopping = true;
    if (process.child) process.child->Signal(signal).IgnoreError();
  }
}

bool Supervisor::AnyAlive(const std::string& prefix) const {
  return std::any_of(processes_.begin(), processes_.end(), [&](const Process& process) {
    return process.child && absl::StartsWith(process.spec.name, prefix);
  });
}

void Supervisor::BoundLogs() const {
  for (const Process& process : processes_) BoundLog(process.spec.log, kLogLimit);
}

}  // namespace milepost::client
