// Those who wait for a change of one job. A change wakes those who wait for that job alone: with
// one condition for all, a thousand changes a second would wake each of hundreds of watchers.
//
//   absl::ReaderMutexLock lock(&mutex);
//   JobWaits::Waiter waiter(&waits, 7);
//   while (!changed()) waiter.Wait(&mutex, timeout);
//
//   absl::MutexLock lock(&mutex);   // whoever changes it
//   ...
//   waits.Wake(7);
//
// Thread-safe. A Waiter belongs to one thread.
#ifndef MILEPOST_COORDINATOR_DESKS_JOB_WAITS_H_
#define MILEPOST_COORDINATOR_DESKS_JOB_WAITS_H_

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

class JobWaits {
 public:
  class Waiter {
   public:
    // `waits` outlives it.
    Waiter(JobWaits* waits, int64_t job) : waits_(waits) {
      absl::MutexLock lock(&waits_->mutex_);
      place_ = waits_->changed_.emplace(job, &changed_);
    }
    ~Waiter() {
      absl::MutexLock lock(&waits_->mutex_);
      waits_->changed_.erase(place_);
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    // True: the time is up. `mutex` is held, shared or not; without it nobody changes the job.
    bool Wait(absl::Mutex* mutex, absl::Duration timeout) {
      return changed_.WaitWithTimeout(mutex, timeout);
    }

   private:
    JobWaits* const waits_;
    absl::CondVar changed_;
    std::multimap<int64_t, absl::CondVar*>::iterator place_;
  };

  void Wake(int64_t job) {
    absl::MutexLock lock(&mutex_);
    for (auto [it, end] = changed_.equal_range(job); it != end; ++it) it->second->SignalAll();
  }
  void WakeAll() {
    absl::MutexLock lock(&mutex_);
    for (const auto& [job, changed] : changed_) changed->SignalAll();
  }

 private:
  absl::Mutex mutex_;
  std::multimap<int64_t, absl::CondVar*> changed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_JOB_WAITS_H_
