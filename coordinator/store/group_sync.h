// One sync for all who ask for one at the same time.
//
//   GroupSync syncs([&] { return database.SyncLog(); });
//   ... write, without a sync ...
//   MP_RETURN_IF_ERROR(syncs.Sync());   // from any thread
//
// Sync returns when one that began after it was called has ended, with that one's status: whatever
// the caller has written is in it. Those that come while one runs share the next. Thread-safe.
#ifndef MILEPOST_COORDINATOR_STORE_GROUP_SYNC_H_
#define MILEPOST_COORDINATOR_STORE_GROUP_SYNC_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace milepost::coordinator {

class GroupSync {
 public:
  // Called without a lock, by one caller of Sync at a time.
  explicit GroupSync(std::function<absl::Status()> sync) : sync_(std::move(sync)) {}

  absl::Status Sync() {
    absl::MutexLock lock(&mutex_);
    const int64_t mine = begun_ + 1;
    ++waiting_;
    while (ended_ < mine && running_) changed_.Wait(&mutex_);
    --waiting_;
    if (ended_ >= mine) return last_;
    running_ = true;
    ++begun_;
    mutex_.Unlock();
    const absl::Status status = sync_();
    mutex_.Lock();
    running_ = false;
    ended_ = begun_;
    last_ = status;
    changed_.SignalAll();
    return status;
  }

  // Callers that wait for a sync that has not begun, or not ended.
  int waiting() {
    absl::MutexLock lock(&mutex_);
    return waiting_;
  }

 private:
  const std::function<absl::Status()> sync_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);  // of number ended_
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_GROUP_SYNC_H_
