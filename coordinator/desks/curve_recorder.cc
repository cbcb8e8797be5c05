#include "coordinator/desks/curve_recorder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/core/state.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kAbsorbEvery = absl::Seconds(1);
// Without a report.
constexpr absl::Duration kForgetAfter = absl::Minutes(2);
// Of which the oldest go: the disk stands still.
constexpr size_t kMostWaiting = 1 << 15;

}  // namespace

CurveRecorder::CurveRecorder(CurveStore* store, absl::Duration store_every)
    : store_(store), store_every_(store_every), thread_([this] { Run(); }) {}

void CurveRecorder::Take(std::vector<RankZeroReport> reports, const std::set<int64_t>& deleted) {
  if (reports.empty() && deleted.empty()) return;
  absl::MutexLock lock(&waiting_mutex_);
  if (stopping_) return;
  if (waiting_.size() + reports.size() > kMostWaiting) waiting_.clear();
  waiting_.insert(waiting_.end(), std::make_move_iterator(reports.begin()),
                  std::make_move_iterator(reports.end()));
  deleted_.insert(deleted_.end(), deleted.begin(), deleted.end());
}

absl::StatusOr<v1::JobCurves> CurveRecorder::Get(int64_t job, size_t max_points) {
  {
    absl::MutexLock lock(&mutex_);
    Absorb();
    const auto found = running_.find(job);
    if (found != running_.end()) return found->second.curves.Describe(max_points);
  }
  MP_ASSIGN_OR_RETURN(const CurveSet stored, store_->Read(job));
  return stored.Describe(max_points);
}

void CurveRecorder::Stop() {
  {
    absl::MutexLock lock(&waiting_mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void CurveRecorder::Run() {
  absl::Time next_store = SteadyNow() + store_every_;
  bool stopping = false;
  while (!stopping) {
    {
      absl::MutexLock lock(&waiting_mutex_);
      waiting_mutex_.AwaitWithTimeout(absl::Condition(&stopping_),
                                      std::min(kAbsorbEvery, store_every_));
      stopping = stopping_;
    }
    absl::MutexLock lock(&mutex_);
    Absorb();
    if (SteadyNow() < next_store && !stopping) continue;
    Store();
    next_store = SteadyNow() + store_every_;
  }
}

void CurveRecorder::Absorb() {
  std::vector<RankZeroReport> reports;
  std::vector<int64_t> deleted;
  {
    absl::MutexLock lock(&waiting_mutex_);
    reports.swap(waiting_);
    deleted.swap(deleted_);
  }
  for (const RankZeroReport& report : reports) {
    Running& running = Find(report.job);
    running.curves.Take(report);
    running.last_report = SteadyNow();
  }
  for (const int64_t job : deleted) {
    // Some of it may have been stored after the job was deleted.
    if (running_.erase(job) > 0) store_->Delete(job).IgnoreError();
  }
}

CurveRecorder::Running& CurveRecorder::Find(int64_t job) {
  const auto [found, is_new] = running_.try_emplace(job);
  if (!is_new) return found->second;
  absl::StatusOr<CurveSet> stored = store_->Read(job);
  if (stored.ok()) {
    found->second.curves = *std::move(stored);
  } else {
    spdlog::warn("{}: its curves cannot be read and begin anew: {}", JobName(job),
                 std::string(stored.status().message()));
    store_->Delete(job).IgnoreError();
  }
  return found->second;
}

void CurveRecorder::Store() {
  CurveStore::Changes changes;
  for (auto& [job, running] : running_) {
    std::vector<CurveBlockChange> blocks = running.curves.TakeChanges();
    if (!blocks.empty()) changes.emplace(job, std::move(blocks));
  }
  const absl::Status status = store_->Write(changes);
  if (!status.ok()) {
    if (!store_fails_) {
      spdlog::warn("jobs' curves cannot be stored: {}", std::string(status.message()));
    }
    for (const auto& [job, blocks] : changes) running_.at(job).curves.NotStored();
  }
  store_fails_ = !status.ok();
  const absl::Time now = SteadyNow();
  std::erase_if(running_,
                [&](const auto& one) { return one.second.last_report + kForgetAfter < now; });
}

}  // namespace milepost::coordinator
