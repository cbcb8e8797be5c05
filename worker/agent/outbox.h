// What the worker has to tell the coordinator. Rank reports and progress are levels, not events:
// the newest one of each rank is kept, sent when it changes, and said again in the Hello of every
// new stream until the coordinator forgets the rank. What was measured of each GPU slot likewise.
// Logs are a bounded queue. How often progress is let out follows the heartbeats, which the
// coordinator sets: with thousands of workers it hears of every rank, yet not of every step.
//
// Thread-safe: the agent's loop puts things in, the session's writer takes messages out.
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

// Of any message that names job, generation and rank.
template <typename Message>
RankKey KeyOf(const Message& message) {
  return {message.job(), message.generation(), message.rank()};
}

// As of now.
v1::RankReport NewRankReport(const RankKey& key, int slot, v1::RankState state);

class Outbox {
 public:
  // `hello`: all of the Hello but its ranks and devices.
  explicit Outbox(v1::Hello hello) : hello_(std::move(hello)) {}

  // Replaces the rank's report; its latest progress stays with it.
  void SetReport(v1::RankReport report);
  // Whether what was last said of the slot's GPU is that nothing can run there.
  bool IsOut(int32_t slot) const;
  // Of a rank that has a report.
  void SetProgress(const RankKey& key, v1::Progress progress);
  // Of the slot that it names.
  void SetFacts(v1::DeviceFacts facts);
  void AddLog(v1::LogLine line);
  void SetLeaving(const std::string& reason);
  // Of the next Hello.
  void SetIncarnation(int64_t incarnation);
  // Instead of an earlier one.
  void SetSpotNotice(v1::SpotNotice notice);
  // Instead of one that was not sent yet. Lost with its stream: it is asked for again.
  void SetHealthReport(v1::HealthReport report);
  void Forget(const RankKey& key);

  std::optional<v1::RankReport> Find(const RankKey& key) const;
  // All that the next stream would begin with, but for the ranks' last lines.
  v1::Hello Describe() const;
  // Waits until every rank is forgotten; false: not by `deadline`.
  bool AwaitAllForgotten(absl::Time deadline) const;

  // ---- the session's side: one stream at a time ----
  // The first message of a new stream: says everything, so nothing else is pending after it but
  // logs.
  v1::WorkerMessage StartStream();
  // Lets out the progress of ranks 0, which is their jobs', ten times in such a time, and that of
  // others, which tells who holds the job up, once. Zero, as at first: whenever it is new.
  void SetHeartbeat(absl::Duration heartbeat);
  // Waits for something to say; nothing by `deadline`, or after Wake. Order: Leaving, the
  // spot notice, reports, progress, devices, health, logs. The lines that were there before the
  // report of a rank's end go before it: who follows a job's log until it ends misses none.
  std::optional<v1::WorkerMessage> Next(absl::Time deadline);
  // Makes a waiting Next return.
  void Wake();

 private:
  struct Entry {
    v1::RankReport report;  // with the latest progress
    bool report_pending = false;
    uint64_t lines_before = 0;  // LogQueue::pushed() when the rank's end was reported
    bool progress_pending = false;
    absl::Time progress_sent = absl::InfinitePast();  // of a steady clock
  };

  // When the rank's progress, if there is any to send, may be sent.
  absl::Time DueOf(const RankKey& key, const Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When there is something to say. InfinitePast: at once; InfiniteFuture: there is nothing.
  absl::Time Due() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: there is none, or lines go before it.
  Entry* NextReport() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // At `now`, when something is due.
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
