// One decision in the making: copies of the records that change, over an unchanged State. Internal
// to core/; decide.h is the entry.
//
// job_flow.cc has what happens to an attempt, worker_flow.cc what happens to a worker, schedule.cc
// the queue.
#ifndef MILEPOST_COORDINATOR_CORE_TRANSITION_H_
#define MILEPOST_COORDINATOR_CORE_TRANSITION_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/state.h"
#include "coordinator/core/wait_reason.h"

namespace milepost::coordinator {

struct JobSubmitted;

class Transition {
 public:
  Transition(const State& state, absl::Time now, const Config& config)
      : state_(state), now_(now), config_(config) {}

  // ---- job_flow.cc: events about jobs ----
  void Submit(const JobSubmitted& event);
  void Cancel(const std::string& job);
  void Resume(const std::string& job, const std::string& request_id,
              std::optional<int64_t> new_steps);
  void Checkpoints(const std::string& job, const std::string& newest, int64_t newest_step);
  void Progressed(const std::string& worker, const v1::RankProgress& progress);
  void KillOverdue();

  // ---- worker_flow.cc: events about workers ----
  void Hello(const v1::Hello& hello);
  // True when a slot went out of order, or back into it.
  bool Heartbeat(const std::string& worker, const std::vector<v1::DeviceFacts>& devices);
  void StreamLost(const std::string& worker);
  void Leaving(const std::string& worker, const std::string& reason);
  void Reported(const std::string& worker, const v1::RankReport& report);
  void ExtendLeases();
  void ExpireLeases();

  // ---- schedule.cc ----
  // Starts what can start; says of the rest why it waits. Last step of every decision that may free
  // or need slots.
  void Schedule();

  Outcome Take() && { return std::move(outcome_); }

 private:
  // A record as this decision sees it, without copying. nullptr when unknown.
  const v1::JobRecord* Job(int64_t number) const;
  const v1::WorkerRecord* Worker(const std::string& name) const;
  // A copy to change. The Soft ones do not make the change durable: progress, leases, wait reasons.
  v1::JobRecord& Change(int64_t number);
  v1::JobRecord& ChangeSoft(int64_t number);
  v1::WorkerRecord& ChangeWorker(const std::string& name);
  v1::WorkerRecord& ChangeWorkerSoft(const std::string& name);
  std::vector<int64_t> ActiveJobs() const;
  void Refuse(absl::Status status) { outcome_.status = std::move(status); }

  // job_flow.cc
  void StartAttempt(int64_t number, const std::vector<PlacedRank>& placed);
  void SendStart(const v1::JobRecord& record, const v1::RankRecord& rank);
  void SendStop(const v1::JobRecord& record, const v1::RankRecord& rank);
  void SendForget(const std::string& worker, const v1::RankReport& report);
  void RankReported(int64_t number, int rank, const v1::RankReport& report);
  void RankLost(int64_t number, int rank, const std::string& why);
  void NoteFailure(v1::JobRecord* record, v1::Failure failure, bool peer_lost);
  void BeginEnding(int64_t number, v1::AttemptEnding ending, v1::JobReason reason,
                   const std::string& detail);
  void StopRanks(v1::JobRecord* record, v1::StopKind kind);
  void Settle(int64_t number);
  void FinishAttempt(int64_t number);
  void FinishFailed(v1::JobRecord* record);
  void EndJob(v1::JobRecord* record, v1::JobState state, v1::JobReason reason,
              const std::string& detail);

  // worker_flow.cc
  void ReportStale(const std::string& worker, const v1::RankReport& report);
  void ReconcileRanks(const std::string& worker, const v1::Hello& hello);
  void LoseRanks(const std::string& worker, const std::string& why);
  void Renew(const std::string& worker);

  // schedule.cc
  std::vector<const v1::WorkerRecord*> ReadyWorkers() const;
  FreeByModel FindFreeSlots(v1::DeviceKind device) const;
  // Those whose device has room for one of the job's ranks.
  FreeByModel LargeEnough(const v1::JobRecord& record, FreeByModel free) const;
  SlotSupply CountSupply(const v1::JobRecord& record) const;
  void ExplainWait(int64_t number, const std::map<std::string, int>& free, int ahead,
                   int64_t blocker);

  const State& state_;
  const absl::Time now_;
  const Config& config_;
  Outcome outcome_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_TRANSITION_H_
