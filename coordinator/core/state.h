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
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

// Numbers that decisions depend on.
struct Config {
  absl::Duration lease = absl::Seconds(5);
  // A rank that was told to checkpoint and leave is killed after this.
  absl::Duration graceful_stop = absl::Seconds(120);
  absl::Duration backoff_cap = absl::Seconds(60);
};

// "jobs/7" -> 7; 0 when the name is not of that form.
int64_t JobNumber(absl::string_view name);
std::string JobName(int64_t number);

bool IsTerminal(v1::JobState state);

// Something to send to a worker once the mutations are durable. A worker without a stream does not
// get it; its next Hello repairs that.
struct Action {
  std::string worker;  // "workers/<id>"
  v1::CoordinatorMessage message;
  bool close = false;  // close the worker's stream instead; `reason` says why
  absl::Status reason;
};

// The result of one decision. When `status` is not OK nothing else is set.
struct Outcome {
  absl::Status status;
  std::map<int64_t, v1::JobRecord> jobs;            // new values, whole
  std::map<std::string, v1::WorkerRecord> workers;  // new values, whole
  std::set<int64_t> durable_jobs;                   // of `jobs`: must be stored before acting
  std::set<std::string> durable_workers;
  std::vector<int64_t> ended_attempts;  // jobs whose rendezvous keys can go
  std::vector<Action> actions;
  std::string job;  // the job that a submit, cancel or resume was about

  bool NeedsWrite() const { return !durable_jobs.empty() || !durable_workers.empty(); }
};

// Not thread-safe.
class State {
 public:
  void PutJob(v1::JobRecord record);
  void PutWorker(v1::WorkerRecord record);
  void Apply(const Outcome& outcome);

  // nullptr when unknown. Valid until the next Put or Apply.
  const v1::JobRecord* FindJob(int64_t number) const;
  const v1::WorkerRecord* FindWorker(const std::string& name) const;
  // Job number of a SubmitJob request, 0 when unknown.
  int64_t FindRequest(const std::string& request_id) const;

  const std::map<int64_t, v1::JobRecord>& jobs() const { return jobs_; }
  const std::map<std::string, v1::WorkerRecord>& workers() const { return workers_; }
  // Jobs that are not terminal.
  const std::set<int64_t>& active() const { return active_; }

  // Jobs are never removed, so the largest number + 1 was never used.
  int64_t NextJobNumber() const { return jobs_.empty() ? 1 : jobs_.rbegin()->first + 1; }
  int64_t NextQueueOrder() const { return largest_queue_order_ + 1; }

 private:
  std::map<int64_t, v1::JobRecord> jobs_;
  std::map<std::string, v1::WorkerRecord> workers_;
  std::set<int64_t> active_;
  std::map<std::string, int64_t> requests_;
  int64_t largest_queue_order_ = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_STATE_H_
