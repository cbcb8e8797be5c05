#include "worker/agent/outbox.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/proto_time.h"
#include "common/rank_state.h"
#include "common/steady_time.h"

namespace milepost::worker {
namespace {

// Of a rank 0: often enough for those who watch the job, whatever the heartbeat.
constexpr int kReportsPerHeartbeat = 10;
// Of a Hello, for the last lines of ranks that have ended: it must fit into one message.
constexpr size_t kMostLastLinesBytes = 8 << 20;

}  // namespace

v1::RankReport NewRankReport(const RankKey& key, int slot, v1::RankState state) {
  v1::RankReport report;
  report.set_job(key.job);
  report.set_generation(key.generation);
  report.set_rank(key.rank);
  report.set_slot(slot);
  report.set_state(state);
  *report.mutable_time() = ToProto(Clock::Real()->Now());
  return report;
}

void Outbox::SetReport(v1::RankReport report) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = ranks_[KeyOf(report)];
  if (!report.has_progress() && entry.report.has_progress()) {
    *report.mutable_progress() = std::move(*entry.report.mutable_progress());
  }
  entry.report = std::move(report);
  entry.lines_before = HasEnded(entry.report.state()) ? logs_.pushed() : 0;
  entry.report_pending = true;
  entry.progress_pending = false;
}

void Outbox::SetProgress(const RankKey& key, v1::Progress progress) {
  absl::MutexLock lock(&mutex_);
  auto found = ranks_.find(key);
  if (found == ranks_.end()) return;
  *found->second.report.mutable_progress() = std::move(progress);
  found->second.progress_pending = true;
}

void Outbox::SetFacts(v1::DeviceFacts facts) {
  absl::MutexLock lock(&mutex_);
  facts_pending_.insert(facts.slot());
  facts_[facts.slot()] = std::move(facts);
}

bool Outbox::IsOut(int32_t slot) const {
  absl::MutexLock lock(&mutex_);
  const auto found = facts_.find(slot);
  return found != facts_.end() && !found->second.problem().empty();
}

void Outbox::AddLog(v1::LogLine line) {
  absl::MutexLock lock(&mutex_);
  logs_.Push(std::move(line));
}

void Outbox::SetLeaving(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  leaving_ = reason;
  leaving_pending_ = true;
}

void Outbox::SetIncarnation(int64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  hello_.set_incarnation(incarnation);
}

void Outbox::SetSpotNotice(v1::SpotNotice notice) {
  absl::MutexLock lock(&mutex_);
  *hello_.mutable_spot_notice() = std::move(notice);
  spot_pending_ = true;
}

void Outbox::SetHealthReport(v1::HealthReport report) {
  absl::MutexLock lock(&mutex_);
  health_ = std::move(report);
}

void Outbox::Forget(const RankKey& key) {
  absl::MutexLock lock(&mutex_);
  ranks_.erase(key);
}

std::optional<v1::RankReport> Outbox::Find(const RankKey& key) const {
  absl::MutexLock lock(&mutex_);
  auto found = ranks_.find(key);
  if (found == ranks_.end()) return std::nullopt;
  return found->second.report;
}

bool Outbox::AwaitAllForgotten(absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ranks_.empty(); };
  return mutex_.AwaitWithDeadline(absl::Condition(&none), deadline);
}

v1::Hello Outbox::Describe() const {
  absl::MutexLock lock(&mutex_);
  v1::Hello hello = hello_;
  for (const auto& [key, entry] : ranks_) {
    *hello.add_ranks() = entry.report;
    hello.mutable_ranks()->rbegin()->clear_last_lines();
  }
  for (const auto& [slot, facts] : facts_) *hello.add_devices() = facts;
  return hello;
}

v1::WorkerMessage Outbox::StartStream() {
  const absl::Time now = SteadyNow();
  absl::MutexLock lock(&mutex_);
  v1::WorkerMessage message;
  *message.mutable_hello() = hello_;
  size_t last_lines = 0;
  for (auto& [key, entry] : ranks_) {
    v1::RankReport& report = *message.mutable_hello()->add_ranks();
    report = entry.report;
    for (const std::string& line : report.last_lines()) last_lines += line.size();
    if (last_lines > kMostLastLinesBytes) report.clear_last_lines();
    entry.report_pending = entry.progress_pending = false;
    entry.progress_sent = now;
  }
  for (const auto& [slot, facts] : facts_) *message.mutable_hello()->add_devices() = facts;
  facts_pending_.clear();
  spot_pending_ = false;
  leaving_pending_ = !leaving_.empty();
  woken_ = false;
  return message;
}

std::optional<v1::WorkerMessage> Outbox::Next(absl::Time deadline) {
  const absl::Time give_up = SteadyNow() + (deadline - Clock::Real()->Now());
  absl::MutexLock lock(&mutex_);
  while (true) {
    const absl::Time now = SteadyNow();
    const absl::Time due = Due();
    if (due <= now) {
      woken_ = false;
      return Take(now);
    }
    if (std::exchange(woken_, false) || now >= give_up) return std::nullopt;
    const absl::Time until = std::min(due, give_up);
    const auto sooner = [this, until]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return woken_ || Due() < until;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&sooner), until - now);
  }
}

void Outbox::SetHeartbeat(absl::Duration heartbeat) {
  absl::MutexLock lock(&mutex_);
  heartbeat_ = heartbeat;
}

void Outbox::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
}

absl::Time Outbox::DueOf(const RankKey& key, const Entry& entry) const {
  if (!entry.progress_pending) return absl::InfiniteFuture();
  return entry.progress_sent + (key.rank == 0 ? heartbeat_ / kReportsPerHeartbeat : heartbeat_);
}

absl::Time Outbox::Due() const {
  const bool now = leaving_pending_ || spot_pending_ || !facts_pending_.empty() ||
                   health_.has_value() || !logs_.empty();
  if (now) return absl::InfinitePast();
  absl::Time due = absl::InfiniteFuture();
  for (const auto& [key, entry] : ranks_) {
    if (entry.report_pending) return absl::InfinitePast();
    due = std::min(due, DueOf(key, entry));
  }
  return due;
}

Outbox::Entry* Outbox::NextReport() {
  for (auto& [key, entry] : ranks_) {
    if (entry.report_pending && entry.lines_before <= logs_.popped()) return &entry;
  }
  return nullptr;
}

v1::WorkerMessage Outbox::Take(absl::Time now) {
  v1::WorkerMessage message;
  if (std::exchange(leaving_pending_, false)) {
    message.mutable_leaving()->set_reason(leaving_);
    return message;
  }
  if (std::exchange(spot_pending_, false)) {
    *message.mutable_spot_notice() = hello_.spot_notice();
    return message;
  }
  if (Entry* entry = NextReport(); entry != nullptr) {
    entry->report_pending = entry->progress_pending = false;
    entry->progress_sent = now;
    *message.mutable_rank_report() = entry->report;
    return message;
  }
  for (auto& [key, entry] : ranks_) {
    if (DueOf(key, entry) > now) continue;
    entry.progress_pending = false;
    entry.progress_sent = now;
    v1::RankProgress& progress = *message.mutable_progress();
    progress.set_job(key.job);
    progress.set_generation(key.generation);
    progress.set_rank(key.rank);
    *progress.mutable_progress() = entry.report.progress();
    return message;
  }
  if (!facts_pending_.empty()) {
    for (int32_t slot : facts_pending_) {
      *message.mutable_heartbeat()->add_devices() = facts_[slot];
    }
    facts_pending_.clear();
    return message;
  }
  if (health_.has_value()) {
    *message.mutable_health_report() = *std::exchange(health_, std::nullopt);
    return message;
  }
  *message.mutable_logs() = logs_.Pop();
  return message;
}

}  // namespace milepost::worker
