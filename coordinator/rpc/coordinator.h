// What gRPC services call; it knows no gRPC. What changes the state goes through the loop
// (coordinator/loop): events become decisions, decisions become durable, and only then leave as
// messages.
//
//   Coordinator coordinator(store.get(), {.config = {.lease = absl::Seconds(5)}});
//   MP_RETURN_IF_ERROR(coordinator.Start());
//   MP_ASSIGN_OR_RETURN(v1::Job job, coordinator.Submit(request));
//   coordinator.Stop();
//
// Thread-safe. One thread decides; what comes while it writes is written together with the next
// write. Calls that change state wait for that, calls that read never do. When a change cannot be
// stored it did not happen: the caller gets the error, and a worker whose message was lost so is
// cut off (its next Hello repeats it).
#ifndef MILEPOST_COORDINATOR_RPC_COORDINATOR_H_
#define MILEPOST_COORDINATOR_RPC_COORDINATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/core/decide.h"
#include "coordinator/loop/loop.h"
#include "coordinator/loop/loop_thread.h"
#include "coordinator/rpc/curve_recorder.h"
#include "coordinator/rpc/job_totals.h"
#include "coordinator/rpc/job_waits.h"
#include "coordinator/rpc/log_writer.h"
#include "coordinator/rpc/planning_room.h"
#include "coordinator/rpc/rendezvous.h"
#include "coordinator/rpc/store_watch.h"

namespace milepost::coordinator {

class Activity;
class CheckpointReader;
class PageRoom;
class Series;
class Store;
class WorkerSession;
struct StoredDelivery;

// What is known of where a job's ranks would run; 0: nothing.
struct KnownPlace {
  int64_t least_memory = 0;  // bytes that a rank has, at least,
  int64_t most_memory = 0;   // and at most
  int threads = 0;           // of a rank
  // On GPUs: what a rank has of its host's memory at most.
  int64_t most_host_memory = 0;
};

// A spec that may run, with nothing left to choose, and what was chosen.
struct AdmittedSpec {
  v1::JobSpec spec;
  std::vector<v1::Choice> choices;
  int64_t slot_bytes = 0;  // memory that a GPU must have for a rank; 0: not a job on GPUs
  std::vector<v1::JobSize> sizes = {};  // of an elastic job, ascending; else empty
  int64_t checkpoint_bytes = 0;         // one of the job's; 0: not known
};

// Is told of jobs that have ended, at least once each. Called from one thread; must not block.
class EndListener {
 public:
  virtual ~EndListener() = default;
  // What is to be sent of this job. Stored together with the job's end.
  virtual std::vector<v1::WebhookDelivery> MessagesFor(const v1::Job& job) = 0;
  // It is durable; Store::ForgetDelivery(number) ends it.
  virtual void Send(uint64_t number, const v1::WebhookDelivery& delivery) = 0;
};

inline constexpr size_t kMaxRequestIdBytes = 128;

// What may change while a coordinator decides.
struct LiveValues {
  Config config;
  size_t most_job_bytes = 0;
};

// Thread-safe.
class LiveSettings {
 public:
  explicit LiveSettings(LiveValues values) : values_(std::move(values)) {}
  LiveValues Get() const {
    absl::MutexLock lock(&mutex_);
    return values_;
  }
  void Set(const LiveValues& values) {
    absl::MutexLock lock(&mutex_);
    values_ = values;
  }

 private:
  mutable absl::Mutex mutex_;
  LiveValues values_ ABSL_GUARDED_BY(mutex_);
};

// What there is to decide on.
struct Load {
  size_t running = 0;  // jobs that hold slots, or are about to
  size_t waiting = 0;  // in a queue
  size_t workers = 0;  // connected
};

struct CoordinatorOptions {
  Config config;
  // Can this normalised, valid spec ever run? Empty: anything may, as it is.
  // May take seconds: StillWanted is to be asked meanwhile.
  std::function<absl::StatusOr<AdmittedSpec>(const v1::JobSpec&, const KnownPlace&,
                                             const StillWanted&)>
      admission;
  // OK while this coordinator may act; else why not, which is what callers then hear. Asked after
  // every write that an answer or a message follows from. Empty: it always may.
  std::function<absl::Status()> may_act;
  // Called, by the thread that writes, when the store has answered every write of so long with an
  // error other than a full disk (store_watch.h). Empty: it is tried for ever.
  std::function<void(const absl::Status&)> on_broken_store;
  absl::Duration store_patience = absl::Seconds(15);
  // On top of what every lease is extended by at the start: for workers that have yet to find out
  // that another coordinator serves.
  absl::Duration start_grace = absl::ZeroDuration();
  // No worker of before this start is alive, nor any of its ranks: they have ended together with
  // who had started them, which is no failure of their jobs.
  bool workers_gone = false;
  // nullptr: wall time at the start plus steady time since, so that a set clock expires no lease.
  Clock* clock = nullptr;
  EndListener* listener = nullptr;  // outlives the coordinator
  // That have not ended: each is looked at in every scheduling pass. One project may have half of
  // them.
  size_t most_active_jobs = 200'000;
  // Of the records of all jobs, also of those that have ended: they are kept, in memory too. A new
  // job that would make them more is refused.
  size_t most_job_bytes = size_t{4} << 30;
  // Asked for what holds instead of `config` and `most_job_bytes`, and may change; its lease must
  // not. Outlives the coordinator. Null: those hold.
  const LiveSettings* live = nullptr;
  // Called by the thread that decides, between decisions, about once a second as long as it gets
  // on. Must not block. May be empty.
  std::function<void(const Load&)> on_turn;
};

// Who wants a job to be planned.
struct Planner {
  std::string who;             // empty: nobody in particular (planning_room.h)
  std::function<bool()> gone;  // and hears no answer; empty: never
  // Nullable: what planning took is added, without the wait for a place.
  absl::Duration* spent = nullptr;
};

std::string ProjectOfJob(const v1::Job& job);

class Coordinator : private LoopHost {
 public:
  Coordinator(Store* store, CoordinatorOptions options);
  ~Coordinator() override;  // stops

  // Loads the state, extends the leases, starts the timer.
  absl::Status Start();
  // Cuts every worker's stream and wakes every waiter; waits end with UNAVAILABLE. Idempotent.
  void Stop();

  // ---- jobs ----
  // What is planned for it, and for the like below, ends as soon as `planner` is gone (CANCELLED)
  // or the coordinator stops.
  absl::StatusOr<v1::Job> Submit(const v1::SubmitJobRequest& request, const Planner& planner = {});
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
  absl::StatusOr<v1::Job> Cancel(const std::string& name);
  // For good, with its checkpoints and its log.
  absl::StatusOr<v1::DeleteJobResponse> DeleteJob(const std::string& name);
  absl::StatusOr<v1::Job> Resume(const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::Job> Suspend(const std::string& name);
  // `by_admin`: of the job's project.
  absl::StatusOr<v1::Job> Update(const v1::UpdateJobRequest& request, bool by_admin,
                                 const Planner& planner = {});

  // Whether the caller may use what a spec names of others' jobs and checkpoints.
  using SpecCheck = std::function<absl::Status(const v1::JobSpec&)>;
  // In `project`, which the request may leave to the source.
  absl::StatusOr<v1::Job> Fork(const v1::ForkJobRequest& request, const std::string& project,
                               const SpecCheck& check, const Planner& planner = {});
  absl::StatusOr<v1::SubmitJobArrayResponse> SubmitArray(const v1::SubmitJobArrayRequest& request,
                                                         const SpecCheck& check,
                                                         const Planner& planner = {});
  absl::StatusOr<v1::CancelJobArrayResponse> CancelArray(const std::string& array);
  // A job of the array; else what its first one was called.
  std::string AnyJobOfArray(const std::string& array);

  // ---- queues ----
  absl::StatusOr<v1::Queue> GetQueue(const std::string& name);
  // By name, after `after`.
  std::vector<v1::Queue> ListQueues(const std::string& after, int limit);
  absl::StatusOr<v1::Queue> PutQueue(const v1::Queue& queue, bool create, bool allow_missing,
                                     bool validate_only);
  absl::Status DeleteQueue(const v1::DeleteQueueRequest& request);

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

  // ---- workers ----
  // The session of a worker that said Hello: it gets Welcome, then all that is wanted of it.
  // Replaces an older session of the worker.
  void Attach(const std::shared_ptr<WorkerSession>& session, const v1::Hello& hello,
              std::function<void(const absl::Status&)> done);
  // `done` is called when it has been dealt with, by any thread and maybe at once; it must not
  // block.
  void Receive(const std::shared_ptr<WorkerSession>& session, v1::WorkerMessage message,
               std::function<void()> done);
  void Detach(const std::shared_ptr<WorkerSession>& session);
  absl::StatusOr<v1::Worker> GetWorker(const std::string& name);
  // By name, after `after`, as many as there is room for.
  std::vector<v1::Worker> ListWorkers(const std::string& after, PageRoom* room);
  absl::StatusOr<v1::Worker> Drain(const v1::DrainWorkerRequest& request);
  absl::StatusOr<v1::Worker> ResumeWorker(const std::string& name);
  absl::Status DeleteWorker(const std::string& name);

  // ---- attempts ----
  // ABORTED unless `generation` is the job's current one and its attempt runs.
  absl::Status CheckGeneration(const std::string& job, int64_t generation);
  // The same, and the worker runs a rank of it now. The answer to others does not tell whether
  // there is such a job.
  absl::Status CheckRuns(const std::string& worker, const std::string& job, int64_t generation);
  // Runs `action` (short) while the generation is certain to stay the current one.
  absl::Status WithGeneration(const std::string& job, int64_t generation,
                              const std::function<absl::Status()>& action);
  // Into the bin, or with `purge` for good. FAILED_PRECONDITION also when a job is to begin with it
  // which has none of its own yet, or it is the newest one of a job that goes on.
  absl::Status DeleteCheckpoint(const std::string& name, bool purge);
  // Deletes what the job's spec does not keep, but for what jobs are to begin with.
  void RetainCheckpoints(const std::string& job);
  // Makes a checkpoint visible by `publish` (short), as with WithGeneration, and tells the job's
  // decisions that it is the newest. Where that cannot be stored (the disk is full) the answer is
  // OK all the same, and no attempt of any job begins until it is.
  absl::Status PublishCheckpoint(const std::string& job, int64_t generation,
                                 const std::function<absl::Status()>& publish);
  // After a deletion or damage: tells the job's decisions which checkpoint is its newest. Where
  // that cannot be stored, as above.
  absl::Status UpdateNewestCheckpoint(const std::string& job);

  // ---- whose things are ----
  // NOT_FOUND when there is no such job.
  absl::StatusOr<std::string> ProjectOf(const std::string& job);
  // A job that the worker runs now made the checkpoint (it is `owner`'s) or begins with it.
  bool NeedsCheckpoint(const std::string& worker, const std::string& checkpoint,
                       const std::string& owner);

  // CoordinatorOptions::may_act.
  absl::Status MayAct() override {
    return options_.may_act ? options_.may_act() : absl::OkStatus();
  }

  // ---- metrics ----
  // What it has done is counted here; thread-safe.
  Activity& activity() { return *activity_; }
  // All that there is to tell now. Holds up decisions for as long as it takes to look at the jobs
  // that have not ended.
  void CollectMetrics(Series* series);

  // That holds now.
  LiveValues Values() const {
    if (options_.live != nullptr) return options_.live->Get();
    return {options_.config, options_.most_job_bytes};
  }

  RendezvousTable& rendezvous() { return rendezvous_; }
  Store& store() { return *store_; }

 private:
  using Entry = Loop::Entry;

  // For CoordinatorOptions::workers_gone, before the loop runs.
  absl::Status NoteWorkersGone();

  // ---- coordinator_loop.cc: what the loop has around it ----
  absl::StatusOr<std::string> Do(Event event);
  absl::StatusOr<std::string> Do(Entry entry);
  absl::Status Write(const Outcome& outcome);
  void AfterTurn();
  std::vector<StoredDelivery> MessagesOf(const Outcome& outcome);
  absl::Status SendStored();

  // LoopHost
  void Wake() override { thread_.Wake(); }
  absl::Time Now() override { return clock_->Now(); }
  absl::Time Steady() override;
  Outcome Decide(const State& state, std::vector<Event>& events, absl::Time now) override;
  Outcome Schedule(const State& state, absl::Time now) override;
  CheckpointsChanged NewestCheckpoint(const std::string& job) override;
  void Durable(const State& before, const Outcome& outcome) override;
  void Landing(const State& before, Outcome* outcome) override;
  void Dispatch(const State& state, const Outcome& outcome) override;
  void Landed() override;
  void DecidedIn(absl::Duration took) override;
  void ScheduledIn(absl::Duration took) override;
  void HeldUp(absl::Duration time) override;

  // ---- coordinator_checkpoints.cc ----
  // Checkpoints that jobs are to begin with which have none of their own yet.
  std::set<std::string> AwaitedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void RetainLocked(const std::string& job) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Has what jobs have begun with, or will not any more, retained like others.
  void RetainReleased(const std::set<std::string>& checkpoints);
  // From time to time, of what has been in the bin for too long.
  void EmptyBin();
  absl::StatusOr<std::unique_ptr<CheckpointReader>> KeepForResuming(const std::string& job,
                                                                    const std::string& request_id);

  // ---- coordinator_deletion.cc ----
  void ForgetLocked(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- coordinator_access.cc ----
  // `bytes`: of their specs together.
  absl::Status CheckRoomFor(const std::string& project, size_t jobs, size_t bytes);
  void RememberLocked(int64_t number, const v1::JobRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The worker ran that rank, in the job's newest generation.
  bool IsItsLineLocked(const std::string& worker, const v1::LogLine& line) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  uint64_t VersionLocked(int64_t number) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  v1::Queue DescribeQueueLocked(const std::string& id) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckGenerationLocked(const std::string& job, int64_t generation)
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::Job> FindLocked(const std::string& name) ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // ---- coordinator_jobs.cc: what is submitted and changed ----
  // Fills in the event's spec and what was chosen for it, or says why it cannot run. `told`: what
  // the caller knows of the place.
  absl::Status AdmitSpec(const KnownPlace& told, const Planner& planner, JobSubmitted* event);
  absl::Status StillWantedBy(const Planner& planner) const;
  KnownPlace PlaceLocked(const KnownPlace& told, const v1::ResourceSpec& resources)
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<CheckpointReader> Keep(const v1::JobSpec& spec);
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
  v1::Worker DescribeLocked(const v1::WorkerRecord& record) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void StoreLogs(const v1::LogBatch& batch);
  void TrimLogs();

  Store* const store_;
  const CoordinatorOptions options_;
  const std::unique_ptr<Clock> own_clock_;
  Clock* const clock_;
  const std::unique_ptr<Activity> activity_;
  const absl::Time started_;
  RendezvousTable rendezvous_;
  PlanningRoom planning_room_;
  CurveRecorder curves_;
  std::atomic<bool> plans_end_ = false;  // stopping_, for what holds no lock

  Loop loop_{this};
  LoopThread thread_;
  // The loop's. Only its thread writes what it guards.
  absl::Mutex& mutex_ = loop_.mutex();
  const State& state_ ABSL_GUARDED_BY(mutex_) = loop_.own_state();
  JobWaits waits_;
  JobTotals totals_ ABSL_GUARDED_BY(mutex_);
  struct Attempt {
    int64_t generation = 0;
    std::vector<std::string> workers;  // by rank
    // Of the one before, whose last lines come when this one has begun.
    int64_t last_generation = 0;
    std::vector<std::string> last_workers;
  };
  std::map<int64_t, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);   // the newest of each job
  std::map<int64_t, uint64_t> versions_ ABSL_GUARDED_BY(mutex_);  // of jobs, by number
  uint32_t view_version_ ABSL_GUARDED_BY(mutex_) = 0;             // of why jobs wait
  std::map<std::string, std::shared_ptr<WorkerSession>> sessions_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the loop's thread alone.
  StoreWatch store_watch_{options_.store_patience};
  absl::Time told_ = absl::InfinitePast();  // on_turn was
  uint64_t next_delivery_ = 1;
  std::vector<StoredDelivery> deliveries_;  // of what is being written
  std::set<std::string> released_;          // checkpoints that a job began with, or will not
  absl::Time next_emptying_ = absl::InfinitePast();  // of the bin
  LogWriter log_writer_;                             // its thread uses what is above
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_COORDINATOR_H_
