// What a coordinator is started with, and what may change while it runs.
#ifndef MILEPOST_COORDINATOR_DESKS_OPTIONS_H_
#define MILEPOST_COORDINATOR_DESKS_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/core/decide.h"
#include "coordinator/desks/planning_room.h"

namespace milepost::coordinator {

// What is known of where a job's ranks would run; 0: nothing.
struct KnownPlace {
  int64_t least_memory = 0;  // bytes that a rank has, at least,
  int64_t most_memory = 0;   // and at most
  int threads = 0;           // of a rank
  // On GPUs: what a rank has of its host's memory at most.
  int64_t most_host_memory = 0;
};

// A spec that may run, with nothing left to choose, and what was chosen.
struct CheckedSpec {
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
  std::function<absl::StatusOr<CheckedSpec>(const v1::JobSpec&, const KnownPlace&,
                                            const StillWanted&)>
      check_submission;
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

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_OPTIONS_H_
