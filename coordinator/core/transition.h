// One decision in the making: copies of the records that change, over an unchanged State. Events
// follow each other, each seeing what those before it have changed; one that is refused has changed
// nothing. Internal to core/; decide.h is the entry.
//
// job_requests.cc has what users ask of jobs, job_progress.cc what running jobs tell,
// attempt_ranks.cc the ranks of an attempt, attempt_end.cc how it ends, worker_flow.cc what happens
// to a worker, host_health.cc failures of its host, queue_flow.cc queues, slot_flow.cc who gets
// slots.
#ifndef MILEPOST_COORDINATOR_CORE_TRANSITION_H_
#define MILEPOST_COORDINATOR_CORE_TRANSITION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/state.h"

namespace milepost::coordinator {

enum class JobCause : uint8_t;
struct JobArraySubmitted;
struct JobDeleted;
struct JobSubmitted;
struct JobUpdated;
struct QueuePut;
struct QueueDeleted;
struct Schedule;

class Transition {
 public:
  Transition(const State& state, absl::Time now, const Config& config)
      : state_(state), now_(now), config_(config) {}

  // ---- job_requests.cc: what users ask of jobs ----
  void Submit(const JobSubmitted& event);
  void SubmitArray(const JobArraySubmitted& event);
  void Cancel(const std::string& job);
  void CancelArray(const std::string& array);
  void Delete(const JobDeleted& event);
  void Suspend(const std::string& job);
  void Update(const JobUpdated& event);
  void Resume(const std::string& job, const std::string& request_id,
              std::optional<int64_t> new_steps);

  // ---- job_progress.cc: what running jobs tell ----
  void Checkpoints(const std::string& job, const std::string& newest, int64_t newest_step);
  // True when the job is to go on elsewhere.
  bool Progressed(const std::string& worker, const v1::RankProgress& progress);

  // ---- attempt_end.cc ----
  // Graceful stops and time limits that have run out.
  void StopOverdue();

  // ---- queue_flow.cc ----
  void Put(const QueuePut& event);
  void Delete(const QueueDeleted& event);

  // ---- worker_flow.cc: events about workers ----
  void Hello(const v1::Hello& hello);
  // True when a slot went out of order, or back into it.
  bool Heartbeat(const std::string& worker, const std::vector<v1::DeviceFacts>& devices);
  void StreamLost(const std::string& worker);
  void Leaving(const std::string& worker, const std::string& reason);
  void Drain(const std::string& worker, const std::string& reason, absl::Time deadline);
  void EndDrain(const std::string& worker);
  void DeleteWorker(const std::string& worker);
  void NoteSpot(const std::string& worker, const v1::SpotNotice& notice);
  // Has the jobs leave whose workers' drains have come to their deadline.
  void BeginDrains();
  void Reported(const std::string& worker, const v1::RankReport& report);
  void ExtendLeases();
  // Of what was loaded from the store.
  void BoundStoredTimes();
  // All workers have ended, and their ranks, and no job is to blame.
  void ForgetRanks();
  void Lengthen(absl::Duration by);
  void ExpireLeases();
  // Those that have been DOWN for long. After all other events of the decision, and only where it
  // is to be stored anyway: a full disk must not keep a Tick from what is due.
  void ForgetWorkers();

  // ---- host_health.cc ----
  // Asks for the health checks that are due.
  void CheckHosts();
  // True when the host may be given ranks again, or what waits has more to say of it.
  bool NoteHealth(const std::string& worker, const v1::HealthReport& report);

  // ---- slot_flow.cc ----
  void Schedule();

  // Keeps with each job how its state has changed. After each event.
  void NoteEvents();

  // Of the last event.
  EventResult TakeResult() { return std::exchange(result_, {}); }
  Outcome Take() && { return std::move(outcome_); }

 private:
  // A record as this decision sees it, without copying. nullptr when unknown.
  const v1::JobRecord* Job(int64_t number) const;
  const v1::WorkerRecord* Worker(const std::string& name) const;
  bool IsDown(const std::string& name) const;  // or unknown
  // A copy to change. The Soft ones do not make the change durable: progress, leases, wait reasons.
  v1::JobRecord& Change(int64_t number);
  v1::JobRecord& ChangeSoft(int64_t number);
  v1::WorkerRecord& ChangeWorker(const std::string& name);
  v1::WorkerRecord& ChangeWorkerSoft(const std::string& name);
  // Jobs that have ranks: all, and at least those with one on a worker.
  std::vector<int64_t> JobsWithRanks() const;
  std::vector<int64_t> JobsOn(const std::string& worker) const;
  void Refuse(absl::Status status) { result_.status = std::move(status); }
  const v1::QueueRecord* Queue(const std::string& id) const;
  absl::Status CheckEmpty(const std::string& queue) const;  // of jobs that have not ended
  int64_t NextJobNumber() const;
  int64_t NextQueueOrder();

  // job_requests.cc
  int64_t KnownRequest(const std::string& request_id) const;
  v1::JobRecord& Add(const JobSubmitted& event);
  absl::Status CheckNotNeeded(const JobDeleted& event) const;
  void Forget(int64_t number);
  v1::SchedulingSpec LastingDependencies(const v1::Job& job) const;
  absl::Status CheckScheduling(int64_t number, const v1::SchedulingSpec& scheduling,
                               const v1::ResourceSpec& resources) const;
  int SlotsHeldIn(const std::string& queue, v1::DeviceKind device) const;
  absl::Status CheckMove(const v1::JobRecord& record, const std::string& queue) const;
  absl::Status CheckTimeLimit(const JobUpdated& event, const v1::JobRecord& known) const;
  absl::Status CheckUpdate(const JobUpdated& event, const v1::JobRecord& known) const;
  bool DependsOn(const v1::SchedulingSpec& scheduling, int64_t other) const;
  void ResumeSuspended(v1::JobRecord* record);

  // job_progress.cc
  void NoteProgress(const v1::Progress& progress, v1::JobRecord* record);
  bool NoteStragglers(int64_t number, v1::JobRecord* record);
  void ReplaceStraggler(int64_t number, const v1::Straggler& straggler);

  // attempt_ranks.cc
  void StartAttempt(int64_t number, const std::vector<PlacedRank>& slots);
  void SendStart(const v1::JobRecord& record, const v1::RankRecord& rank);
  void SendStop(const v1::JobRecord& record, const v1::RankRecord& rank);
  void SendForget(const std::string& worker, const v1::RankReport& report);
  void RankReported(int64_t number, int rank, const v1::RankReport& report);
  void RankLost(int64_t number, int rank, const std::string& why);
  void GiveUpRanks(int64_t number);
  void KillOverdue(int64_t number);
  void NoteFailure(v1::JobRecord* record, v1::Failure failure, bool peer_lost);

  // attempt_end.cc
  void BeginEnding(int64_t number, v1::AttemptEnding ending, v1::JobReason reason,
                   const std::string& detail);
  void AbortRanks(v1::JobRecord* record);
  void StopRanks(v1::JobRecord* record, v1::StopKind kind);
  void Settle(int64_t number);
  void FinishAttempt(int64_t number);
  void FinishEnding(v1::JobRecord* record, v1::AttemptEnding ending);
  void FinishFailed(v1::JobRecord* record);
  static void ExplainFailure(v1::JobRecord* record);
  void EndJob(v1::JobRecord* record, JobCause cause, v1::JobReason reason,
              const std::string& detail);

  // worker_flow.cc
  void ReportStale(const std::string& worker, const v1::RankReport& report);
  void AddStale(const std::string& worker, const v1::RankReport& report);
  void ReconcileRanks(const std::string& worker, const v1::Hello& hello);
  void LoseRanks(const std::string& worker, const std::string& why);
  void Renew(const std::string& worker);
  void Evict(const std::string& worker, const std::string& why);
  bool HasRanks(const std::string& worker) const;
  void SettleDrain(const std::string& worker);

  // host_health.cc
  void NoteHostFailure(const std::string& worker, v1::FailureClass failure_class,
                       const std::string& job);
  void Exclude(const std::string& worker);

  // slot_flow.cc
  void Follow(const coordinator::Schedule& schedule);
  void Preempt(int64_t victim, int64_t winner);
  void Resize(int64_t number, int ranks);
  void ClearBackoffs(const KindView& view);

  const State& state_;
  const absl::Time now_;
  const Config& config_;
  Outcome outcome_;
  EventResult result_;                       // of the event that is decided on
  std::map<std::string, int64_t> requests_;  // of jobs submitted in this decision
  std::set<int64_t> touched_;                // jobs changed since NoteEvents
  int64_t queue_orders_ = 0;                 // given in this decision
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_TRANSITION_H_
