// The coordinator's process, without gRPC: the loop, the thread that steps it, and the desks in
// front of it, which services call.
//
//   Coordinator coordinator(store.get(), {.config = {.lease = absl::Seconds(5)}});
//   MP_RETURN_IF_ERROR(coordinator.Start());
//   MP_ASSIGN_OR_RETURN(v1::Job job, coordinator.jobs().Submit(request));
//   coordinator.Stop();
//
// Thread-safe.
#ifndef MILEPOST_COORDINATOR_DESKS_COORDINATOR_H_
#define MILEPOST_COORDINATOR_DESKS_COORDINATOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/desks/attempt_desk.h"
#include "coordinator/desks/checkpoint_desk.h"
#include "coordinator/desks/files_desk.h"
#include "coordinator/desks/job_desk.h"
#include "coordinator/desks/options.h"
#include "coordinator/desks/queue_desk.h"
#include "coordinator/desks/store_watch.h"
#include "coordinator/desks/worker_desk.h"
#include "coordinator/loop/loop.h"
#include "coordinator/loop/loop_thread.h"

namespace milepost::coordinator {

class Activity;
class Series;
class Store;
struct StoredDelivery;

class Coordinator : private LoopHost {
 public:
  // `store` outlives it.
  Coordinator(Store* store, CoordinatorOptions options);
  ~Coordinator() override;  // stops

  // Loads the state, extends the leases, starts the thread.
  absl::Status Start();
  // Cuts every worker's stream and wakes every waiter; waits end with UNAVAILABLE. Idempotent.
  void Stop();

  JobDesk& jobs() { return jobs_; }
  AttemptDesk& attempts() { return attempts_; }
  CheckpointDesk& checkpoints() { return checkpoints_; }
  FilesDesk& files() { return files_; }
  WorkerDesk& workers() { return workers_; }
  QueueDesk& queues() { return queues_; }
  Store& store() { return *store_; }

  // CoordinatorOptions::may_act.
  absl::Status MayAct() override {
    return options_.may_act ? options_.may_act() : absl::OkStatus();
  }
  // That holds now.
  LiveValues Values() const { return ValuesOf(options_); }
  // What it has done is counted here; thread-safe.
  Activity& activity() { return *activity_; }
  // All that there is to tell now. Holds up decisions for as long as it takes to look at the jobs
  // that have not ended.
  void CollectMetrics(Series* series);

 private:
  // For CoordinatorOptions::workers_gone, before the loop runs.
  absl::Status NoteWorkersGone();
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

  Store* const store_;
  const CoordinatorOptions options_;
  const std::unique_ptr<Clock> own_clock_;
  Clock* const clock_;
  const std::unique_ptr<Activity> activity_;
  const absl::Time started_;
  std::atomic<bool> stopping_ = false;

  Loop loop_{this};
  LoopThread thread_;
  AttemptDesk attempts_;
  CheckpointDesk checkpoints_;
  FilesDesk files_;
  JobDesk jobs_;
  WorkerDesk workers_;
  QueueDesk queues_;

  // Of the loop's thread alone.
  StoreWatch store_watch_{options_.store_patience};
  absl::Time told_ = absl::InfinitePast();  // on_turn was
  uint64_t next_delivery_ = 1;
  std::vector<StoredDelivery> deliveries_;  // of what is being written
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_COORDINATOR_H_
