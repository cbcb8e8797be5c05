// What the coordinator knows, and what one decision changes. Pure data: no I/O, threads or clock.
//
//   State state;
//   state.Load(jobs_and_workers_from_the_store);
//   Outcome outcome = Decide(state, event, now, config);  // core/decide.h
//   store->Write(outcome.Durable...);                     // before any action leaves
//   state.Apply(outcome);
//
// Invariants:
// - A slot is held by at most one rank that is not gone, or one stale process.
// - A job has ranks exactly while an attempt runs or winds up; generations only grow.
// - A terminal job has no ranks.
#ifndef MILEPOST_COORDINATOR_CORE_STATE_H_
#define MILEPOST_COORDINATOR_CORE_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/curve_set.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/stragglers.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

// Numbers that decisions depend on.
struct Config {
  absl::Duration lease = absl::Seconds(5);
  // A rank that was told to checkpoint and leave is killed after this.
  absl::Duration graceful_stop = absl::Seconds(120);
  // A rank that was told that others are lost is killed after this, and a second more for each GiB
  // that it has on its device.
  absl::Duration abort_stop = absl::Seconds(15);
  // A rank that was killed and has not ended after this and a lease, for the messages, counts as
  // lost with its host. Its slot is not free before its process has ended.
  absl::Duration kill_wait = absl::Seconds(30);
  absl::Duration backoff_cap = absl::Seconds(60);
  // Hosts with a device or host failure within this time get ranks only where there is no other
  // way.
  absl::Duration avoid_after_failure = absl::Hours(1);
  // Hosts with so many of them within that time get none before they have passed a health check.
  // 0: no host is excluded.
  int exclude_after = 3;
  // A host that failed a health check, or fails again after one, is checked after this, then after
  // twice as long, and so on.
  absl::Duration check_backoff = absl::Minutes(1);
  // A rank that is slower than the others for so long is a straggler.
  absl::Duration straggler_after = absl::Minutes(1);
  // An elastic job that has started with fewer ranks than it may have is left alone for so long.
  absl::Duration resize_interval = absl::Minutes(10);
  // Of a worker that has been DOWN for so long nothing is kept, so that hosts which come and go
  // with ever new names do not add up. A drain that somebody has asked for stays, and so does an
  // exclusion. With less than avoid_after_failure failures are forgotten that still count.
  absl::Duration forget_worker_after = absl::Hours(7 * 24);
};

// Between two health checks of a host.
inline constexpr absl::Duration kLongestCheckBackoff = absl::Minutes(30);

inline constexpr char kDefaultQueue[] = "default";

// Of one array. They have consecutive numbers; some may be deleted.
inline constexpr int kMostJobsOfArray = 1000;

// "jobs/7" -> 7; 0 when the name is not of that form.
int64_t JobNumber(absl::string_view name);
std::string JobName(int64_t number);

// "arrays/7" -> 7, which is also the number of its first job; 0 when the name is not of that form.
int64_t ArrayNumber(absl::string_view name);
std::string ArrayName(int64_t number);

// The answers to those who name what is not there, or may not see it.
absl::Status NoSuchJob(absl::string_view name);
absl::Status NoSuchQueue(absl::string_view name);

// What was read as `given` has had another version since.
absl::Status EtagMismatch(absl::string_view name, absl::string_view given, int64_t version);

bool IsTerminal(v1::JobState state);

// The fewest ranks that the job runs with.
int LeastRanksOf(const v1::JobRecord& record);

// "queues/research" -> "research"; empty when the name is not of that form.
std::string QueueId(absl::string_view name);
std::string QueueName(absl::string_view id);

// A rank of the job that is not gone is on the worker.
bool HasRankOn(const v1::JobRecord& record, const std::string& worker);

// Its ranks that are not gone have been sent SIGKILL.
bool AllKilled(const v1::JobRecord& record);

// It had a device or host failure after `since`.
bool IsAvoided(const v1::WorkerRecord& record, absl::Time since);

// It has a stream, as far as is known.
bool IsConnected(const v1::Worker& worker);

// The value of its label "pool"; empty: it has none. As long-lived as the worker.
const std::string& PoolOf(const v1::Worker& worker);

// What the job is to begin with, as long as it has no checkpoint of its own; empty: nothing.
std::string AwaitedCheckpoint(const v1::JobRecord& record);

// When its host is to be checked; InfiniteFuture: there is no need, or it cannot be asked.
absl::Time NextHealthCheck(const v1::Worker& worker);

// When the running attempt has held its slots for as long as the job may; InfiniteFuture: it may
// for ever, or none runs.
absl::Time TimeLimitEnd(const v1::JobRecord& record);

// What a record of that version has for an etag.
std::string EtagOf(int64_t version);

// Something to send to a worker once the mutations are durable. A worker without a stream does not
// get it; its next Hello repairs that.
struct Action {
  std::string worker;  // "workers/<id>"
  v1::CoordinatorMessage message;
  bool close = false;  // close the worker's stream instead; `reason` says why
  absl::Status reason;
};

struct EventResult {
  absl::Status status;
  std::string job;
};

// The result of one decision.
struct Outcome {
  // Of the event (the first of several) alone: nothing of a refused one is in the rest.
  absl::Status status;
  // One for each event, where there were several; see DecideAll.
  std::vector<EventResult> results;
  std::map<int64_t, v1::JobRecord> jobs;            // new values, whole
  std::map<std::string, v1::WorkerRecord> workers;  // new values, whole
  std::set<int64_t> durable_jobs;                   // of `jobs`: must be stored before acting
  std::set<std::string> durable_workers;
  std::map<std::string, std::optional<v1::QueueRecord>> queues;  // all durable; none: deleted
  std::set<std::string> forgotten_workers;                       // durable; none of `workers`
  std::set<int64_t> deleted_jobs;                                // durable; none of `jobs`
  int64_t last_job = 0;                 // durable with deleted_jobs: the largest number given out
  std::vector<int64_t> ended_attempts;  // jobs whose rendezvous keys can go
  std::vector<Action> actions;
  std::vector<SpeedSample> speeds;
  std::vector<RankZeroReport> reports;
  std::string job;  // of `status`'s event: the job that a submit, cancel or resume was about
  // Slots may have come free, or be wanted: DecideSchedule has something to do.
  bool schedule = false;
  std::shared_ptr<const QueueView> view;  // of DecideSchedule

  bool NeedsWrite() const {
    return !durable_jobs.empty() || !durable_workers.empty() || !queues.empty() ||
           !forgotten_workers.empty() || !deleted_jobs.empty();
  }
};

// Not thread-safe.
class State {
 public:
  void PutJob(v1::JobRecord record);
  void PutWorker(v1::WorkerRecord record);
  void PutQueue(v1::QueueRecord record);
  // Numbers up to this one were given out, also where their jobs are deleted.
  void NoteLastJob(int64_t number);
  void Apply(const Outcome& outcome);
  // The same, and takes jobs' and workers' records out of the outcome, as progress comes thousands
  // of times a second. Their names stay, and all else.
  void Take(Outcome* outcome);

  // nullptr when unknown. Valid until the next Put or Apply.
  const v1::JobRecord* FindJob(int64_t number) const;
  // One of the array's, the one with the smallest number.
  const v1::JobRecord* FindOfArray(const std::string& array) const;
  const v1::WorkerRecord* FindWorker(const std::string& name) const;
  // By id ("default"); nullptr when nothing is known of it but that it may be the default queue.
  const v1::QueueRecord* FindQueue(const std::string& id) const;
  // Job number of a SubmitJob request, 0 when unknown.
  int64_t FindRequest(const std::string& request_id) const;

  const std::map<int64_t, v1::JobRecord>& jobs() const { return jobs_; }
  const std::map<std::string, v1::WorkerRecord>& workers() const { return workers_; }
  const std::map<std::string, v1::QueueRecord>& queues() const { return queues_; }
  // Jobs that are not terminal.
  const std::set<int64_t>& active() const { return active_; }
  // Jobs that have ranks: all of them, and those with one (gone or not) on a worker.
  const std::set<int64_t>& with_ranks() const { return with_ranks_; }
  const std::set<int64_t>& WithRanksOn(const std::string& worker) const;
  // Jobs for which something is due at some time.
  const std::set<int64_t>& timed() const { return timed_; }
  const Speeds& speeds() const { return speeds_; }
  // Of the last DecideSchedule; never null.
  const std::shared_ptr<const QueueView>& queue_view() const { return queue_view_; }

  int64_t NextJobNumber() const { return last_job_ + 1; }
  int64_t NextQueueOrder() const { return largest_queue_order_ + 1; }

 private:
  void ApplyOthers(const Outcome& outcome);
  void Index(int64_t number, const v1::JobRecord& record);
  void DeleteJob(int64_t number);

  std::map<int64_t, v1::JobRecord> jobs_;
  std::map<std::string, v1::WorkerRecord> workers_;
  std::map<std::string, v1::QueueRecord> queues_;
  std::set<int64_t> active_;
  std::set<int64_t> with_ranks_;
  std::set<int64_t> timed_;
  absl::flat_hash_map<std::string, std::set<int64_t>> by_worker_;
  std::shared_ptr<const QueueView> queue_view_ = std::make_shared<QueueView>();
  std::map<std::string, int64_t> requests_;
  int64_t last_job_ = 0;
  int64_t largest_queue_order_ = 0;
  Speeds speeds_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_STATE_H_
