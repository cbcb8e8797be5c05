#include "worker/agent/rank_containers.h"

#include <spdlog/spdlog.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/steady_time.h"
#include "worker/agent/rank_names.h"
#include "worker/container/podman.h"
#include "worker/container/podman_run.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kBetweenPeeks = absl::Milliseconds(50);
constexpr absl::Duration kRemovalTime = absl::Minutes(1);
constexpr absl::Duration kLastRemovals = absl::Seconds(10);
// What is just being killed cannot be removed yet.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(200);
constexpr int kMostFailures = 8;  // then the next worker tries

}  // namespace

RankContainers::RankContainers(const std::string& data_dir)
    : path_(data_dir + "/rank-containers"), prefix_(RankNamePrefix(data_dir)) {
  std::ifstream file(path_);
  for (std::string name; std::getline(file, name);) {
    // Of another folder, which this one is a copy of.
    if (absl::StartsWith(name, prefix_)) ended_.insert(name);
  }
  if (!ended_.empty()) {
    spdlog::warn("an earlier worker may have left containers: {}", absl::StrJoin(ended_, ", "));
  }
}

void RankContainers::AwaitRemoved() {
  const absl::Time deadline = SteadyNow() + kLastRemovals;
  while (Sweep(SteadyNow()) != absl::InfiniteFuture() && SteadyNow() < deadline) {
    absl::SleepFor(kBetweenPeeks);
  }
}

RankContainers::~RankContainers() {
  if (podman_) Subprocess::LeaveBehind(*std::move(podman_));
}

std::string RankContainers::Make(const RankKey& key) {
  const std::string name = absl::StrCat(prefix_, RankName(key));
  ended_.erase(name);  // of another job of this number
  running_[key] = name;
  Write();
  return name;
}

void RankContainers::Ended(const RankKey& key) {
  const auto found = running_.find(key);
  if (found == running_.end()) return;
  ended_.insert(std::move(found->second));
  running_.erase(found);
  failures_ = 0;
  next_try_ = absl::InfinitePast();
}

absl::Time RankContainers::Sweep(absl::Time now) {
  if (podman_) {
    const absl::StatusOr<ExitResult> end = podman_->Wait(absl::InfinitePast());
    if (!end.ok() && now < deadline_) return now + kBetweenPeeks;
    // One that hangs, as on a disk that does, must not hold the agent's loop.
    if (!end.ok()) Subprocess::LeaveBehind(*std::move(podman_));
    Finish(end.ok() && end->success(), now);
  }
  if (!ended_.empty() && failures_ < kMostFailures && now >= next_try_) Start(now);
  if (podman_) return now + kBetweenPeeks;
  return ended_.empty() || failures_ >= kMostFailures ? absl::InfiniteFuture() : next_try_;
}

void RankContainers::Start(absl::Time now) {
  removing_ = ended_;
  const absl::StatusOr<std::string> program = FindPodman();
  // Then there are no containers.
  if (!program.ok()) return Finish(/*removed=*/true, now);
  SpawnOptions spawn;
  spawn.argv = PodmanRemoveArguments({removing_.begin(), removing_.end()});
  spawn.program = *program;
  spawn.out = Redirect::Null();  // names
  spawn.end_group = true;
  absl::StatusOr<Subprocess> podman = Subprocess::Spawn(std::move(spawn));
  if (!podman.ok()) return Finish(/*removed=*/false, now);
  podman_.emplace(*std::move(podman));
  deadline_ = now + kRemovalTime;
}

void RankContainers::Finish(bool removed, absl::Time now) {
  podman_.reset();
  if (removed) {
    for (const std::string& name : removing_) ended_.erase(name);
    failures_ = 0;
    Write();
  } else if (++failures_ >= kMostFailures) {
    spdlog::error("podman does not remove {}: the next start of this worker tries it again",
                  absl::StrJoin(removing_, ", "));
  }
  removing_.clear();
  next_try_ = removed ? now : now + kFirstRetry * (1 << failures_);
}

void RankContainers::Write() const {
  const std::string temporary = path_ + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    for (const auto& [key, name] : running_) file << name << "\n";
    for (const std::string& name : ended_) file << name << "\n";
    file.flush();
    if (file && rename(temporary.c_str(), path_.c_str()) == 0) return;
  }
  spdlog::warn("cannot write {}: {}: should this worker end, containers may stay", path_,
               strerror(errno));
}

}  // namespace milepost::worker
