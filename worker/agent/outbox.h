// What the worker has to tell the coordinator. Rank reports and progress are levels, not events.
// The outbox keeps the newest one of each rank and sends it when it changes. The Hello of every new
// stream repeats it, until the coordinator forgets the rank. The measurements of each GPU slot are
// handled the same way. Logs are a bounded queue.
//
// The rate of progress messages follows the heartbeats, whose interval the coordinator sets. With
// thousands of workers the coordinator hears of every rank, but not of every step.
//
// Thread-safe: the agent's loop puts things in, and the session's writer takes messages out.
#ifndef MILEPOST_WORKER_AGENT_OUTBOX_H_
#define MILEPOST_WORKER_AGENT_OUTBOX_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"
#include "worker/agent/log_lines.h"

namespace milepost::worker {

struct RankKey {
  std::string job;
  int64_t generation = 0;
  int32_t rank = 0;

  bool operator<(const RankKey& other) const {
    return std::tie(job, generation, rank) < std::tie(other.job, other.generation, other.rank);
  }
};

// The key of any message that names job, generation and rank.
template <typename Message>
RankKey KeyOf(const Message& message) {
  return {message.job(), message.generation(), message.rank()};
}

// A report with the current time.
v1::RankReport NewRankReport(const RankKey& key, int slot, v1::RankState state);

class Outbox {
 public:
  // `hello`: the whole Hello except its ranks and devices.
  explicit Outbox(v1::Hello hello) : hello_(std::move(hello)) {}

  // Replaces the rank's report and keeps the rank's latest progress.
  void SetReport(v1::RankReport report);
  // True when the newest facts of the slot's GPU say that nothing can run there.
  bool IsOut(int32_t slot) const;
  // Has an effect only for a rank that has a report.
  void SetProgress(const RankKey& key, v1::Progress progress);
  // Replaces the facts of the slot that `facts` names.
  void SetFacts(v1::DeviceFacts facts);
  void AddLog(v1::LogLine line);
  void SetLeaving(const std::string& reason);
  // Sets the incarnation of the next Hello.
  void SetIncarnation(int64_t incarnation);
  // Replaces an earlier notice.
  void SetSpotNotice(v1::SpotNotice notice);
  // Replaces a report that was not sent yet. A report is lost with its stream; the coordinator then
  // asks again.
  void SetHealthReport(v1::HealthReport report);
  void Forget(const RankKey& key);

  std::optional<v1::RankReport> Find(const RankKey& key) const;
  // What the next stream would begin with, without the ranks' last lines.
  v1::Hello Describe() const;
  // Blocks until every rank is forgotten. False: `deadline` came first.
  bool AwaitAllForgotten(absl::Time deadline) const;

  // ---- the session's side: one stream at a time ----
  // The first message of a new stream. It says everything, so afterwards only logs are pending.
  v1::WorkerMessage StartStream();
  // Limits progress messages. A rank 0 speaks for its job and sends at most ten per `heartbeat`.
  // Other ranks, which show who holds the job up, send at most one. Zero, the initial value: new
  // progress is sent at once.
  void SetHeartbeat(absl::Duration heartbeat);
  // Blocks until there is something to say. Returns nullopt at `deadline` or after Wake. The order
  // is: Leaving, the spot notice, reports, progress, devices, health, logs. Lines that were queued
  // before the report of a rank's end are sent before it. So a client that follows a job's log
  // until its end misses no line.
  std::optional<v1::WorkerMessage> Next(absl::Time deadline);
  // Makes a waiting Next return.
  void Wake();

 private:
  struct Entry {
    v1::RankReport report;  // with the latest progress
    bool report_pending = false;
    uint64_t lines_before = 0;  // LogQueue::pushed() when the rank's end was reported
    bool progress_pending = false;
    absl::Time progress_sent = absl::InfinitePast();  // time of a steady clock
  };

  // When the rank's pending progress may be sent. InfiniteFuture: none is pending.
  absl::Time DueOf(const RankKey& key, const Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When there is something to say. InfinitePast: at once; InfiniteFuture: nothing is pending.
  absl::Time Due() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: no report is pending, or log lines must be sent first.
  Entry* NextReport() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Call it only when something is due at `now`.
  v1::WorkerMessage Take(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  v1::Hello hello_ ABSL_GUARDED_BY(mutex_);  // with the newest spot notice, once there is one
  std::map<RankKey, Entry> ranks_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, v1::DeviceFacts> facts_ ABSL_GUARDED_BY(mutex_);  // by slot
  std::set<int32_t> facts_pending_ ABSL_GUARDED_BY(mutex_);
  LogQueue logs_ ABSL_GUARDED_BY(mutex_){10000, 4 << 20};
  std::string leaving_ ABSL_GUARDED_BY(mutex_);
  bool leaving_pending_ ABSL_GUARDED_BY(mutex_) = false;
  bool spot_pending_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<v1::HealthReport> health_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_OUTBOX_H_
