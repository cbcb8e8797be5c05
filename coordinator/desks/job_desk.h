// The desk for jobs: what users submit, ask of jobs and read of them.
//
//   MP_ASSIGN_OR_RETURN(v1::Job job, coordinator.jobs().Submit(request));
#ifndef MILEPOST_COORDINATOR_DESKS_JOB_DESK_H_
#define MILEPOST_COORDINATOR_DESKS_JOB_DESK_H_

#include <google/protobuf/field_mask.pb.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/desks/curve_recorder.h"
#include "coordinator/desks/desk.h"
#include "coordinator/desks/job_totals.h"
#include "coordinator/desks/job_waits.h"
#include "coordinator/desks/planning_room.h"

namespace milepost::coordinator {

class Activity;
class CheckpointDesk;
class CheckpointReader;
class FilesDesk;

inline constexpr size_t kMaxRequestIdBytes = 128;

// Who wants a job to be planned.
struct Planner {
  std::string who;             // empty: nobody in particular (planning_room.h)
  std::function<bool()> gone;  // and hears no answer; empty: never
  // Nullable: what planning took is added, without the wait for a place.
  absl::Duration* spent = nullptr;
};

class JobDesk : private Desk {
 public:
  // They outlive the desk.
  JobDesk(const DeskTools& tools, Activity* activity, CheckpointDesk* checkpoints,
          FilesDesk* files);
  ~JobDesk();

  // ---- job_submission.cc ----
  // What is planned for it, and for the like below, ends as soon as `planner` is gone (CANCELLED)
  // or the coordinator stops.
  absl::StatusOr<v1::Job> Submit(const v1::SubmitJobRequest& request, const Planner& planner = {});
  // Whether the caller may use what a spec names of others' jobs and checkpoints.
  using SpecCheck = std::function<absl::Status(const v1::JobSpec&)>;
  // In `project`, which the request may leave to the source.
  absl::StatusOr<v1::Job> Fork(const v1::ForkJobRequest& request, const std::string& project,
                               const SpecCheck& check, const Planner& planner = {});
  absl::StatusOr<v1::SubmitJobArrayResponse> SubmitArray(const v1::SubmitJobArrayRequest& request,
                                                         const SpecCheck& check,
                                                         const Planner& planner = {});

  // ---- job_changes.cc ----
  absl::StatusOr<v1::Job> Cancel(const std::string& name);
  absl::StatusOr<v1::CancelJobArrayResponse> CancelArray(const std::string& array);
  absl::StatusOr<v1::Job> Resume(const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::Job> Suspend(const std::string& name);
  // `by_admin`: of the job's project.
  absl::StatusOr<v1::Job> Update(const v1::UpdateJobRequest& request, bool by_admin,
                                 const Planner& planner = {});
  // For good, with its checkpoints and its log.
  absl::StatusOr<v1::DeleteJobResponse> Delete(const std::string& name);

  // ---- job_desk.cc: what is read ----
  absl::StatusOr<v1::Job> Get(const std::string& name);
  struct JobPage {
    std::vector<v1::Job> jobs;
    int64_t next_before = 0;  // where the next page begins; 0: there is none
  };
  // Newest first, from below job number `before` (0: from the newest); those that `wanted` answers
  // true to (with a lock held), all when it is empty. May be fewer than `limit`, even none, when
  // there is more: one call looks at 20,000 jobs, and a page has room for some MiB (paging.h).
  // `fields`: as decide.h has it.
  JobPage List(int64_t before, int limit,
               const std::function<bool(const v1::Job&)>& wanted = nullptr,
               const google::protobuf::FieldMask& fields = {});
  // A job of the array; else what its first one was called.
  std::string AnyJobOfArray(const std::string& array);
  // NOT_FOUND when there is no such job.
  absl::StatusOr<std::string> ProjectOf(const std::string& job);
  struct Snapshot {
    v1::Job job;
    uint64_t version = 0;
  };
  // The job as soon as its version differs from `seen`; after `timeout` without that, `seen` and no
  // job.
  absl::StatusOr<Snapshot> Wait(const std::string& name, uint64_t seen, absl::Duration timeout);
  // `max_points`: of each curve; 0: all that are kept. Blocks on the disk.
  absl::StatusOr<v1::JobCurves> GetCurves(const std::string& name, int max_points);
  // Returns when a log line of the job may have arrived, it has changed, or after `timeout`.
  void WaitLogs(const std::string& name, absl::Duration timeout);

  // ---- by the coordinator, and the desk for workers ----
  // All jobs that were loaded.
  void LoadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As in LoopHost.
  void LandingLocked(const State& before, Outcome* outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChangedLocked(const Outcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeAll() { waits_.WakeAll(); }
  void LogsCame(int64_t number) { waits_.Wake(number); }
  const JobTotals& TotalsLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return totals_; }
  // Stores what is not stored yet of curves.
  void Stop() { curves_.Stop(); }

 private:
  // `bytes`: of their specs together.
  absl::Status CheckRoomFor(const std::string& project, size_t jobs, size_t bytes);
  uint64_t VersionLocked(int64_t number) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::Job> FindLocked(const std::string& name) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Fills in the event's spec and what was chosen for it, or says why it cannot run. `told`: what
  // the caller knows of the place.
  absl::Status AdmitSpec(const KnownPlace& told, const Planner& planner, JobSubmitted* event);
  absl::Status StillWantedBy(const Planner& planner) const;
  KnownPlace PlaceLocked(const KnownPlace& told, const v1::ResourceSpec& resources)
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<JobSubmitted> NewJob(
      const v1::JobSpec& spec, const std::string& project,
      const google::protobuf::Map<std::string, std::string>& labels);
  absl::StatusOr<v1::Job> SubmitNew(const KnownPlace& told, bool validate_only,
                                    const Planner& planner, JobSubmitted event);
  absl::StatusOr<std::optional<v1::Job>> KnownRequest(const std::string& request_id,
                                                      uint64_t digest, bool of_array,
                                                      bool validate_only);
  absl::StatusOr<v1::CheckpointManifest> ForkedCheckpoint(const std::string& source);
  absl::StatusOr<JobUpdated> UpdateOf(const v1::UpdateJobRequest& request, const Planner& planner);
  absl::StatusOr<RankBounds> AdmitBounds(const v1::Job& job, const v1::UpdateJobRequest& request,
                                         const Planner& planner);
  absl::Status AdmitArray(const Planner& planner, std::vector<JobSubmitted>* jobs);
  absl::StatusOr<JobArraySubmitted> NewArray(
      const v1::SubmitJobArrayRequest& request, const std::string& project, const SpecCheck& check,
      std::map<std::string, std::unique_ptr<CheckpointReader>>* kept);

  Activity* const activity_;
  CheckpointDesk* const checkpoints_;
  FilesDesk* const files_;
  PlanningRoom planning_room_;
  CurveRecorder curves_;
  JobWaits waits_;
  JobTotals totals_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, uint64_t> versions_ ABSL_GUARDED_BY(mutex_);  // of jobs, by number
  uint32_t view_version_ ABSL_GUARDED_BY(mutex_) = 0;             // of why jobs wait
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_JOB_DESK_H_
