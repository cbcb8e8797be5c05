// What is to be sent to one worker's stream: a bounded queue between decisions and the stream's
// writer. Thread-safe.
#ifndef MILEPOST_COORDINATOR_RPC_WORKER_SESSION_H_
#define MILEPOST_COORDINATOR_RPC_WORKER_SESSION_H_

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::coordinator {

class WorkerSession {
 public:
  static constexpr size_t kMaxQueued = 4096;

  // `cancel` ends the stream from another thread; called at most once, not after Close by the
  // stream itself (`cancel` must stay callable while the session is shared).
  WorkerSession(std::string worker, std::function<void()> cancel)
      : worker_(std::move(worker)), cancel_(std::move(cancel)) {}

  const std::string& worker() const { return worker_; }

  // A worker that does not read its stream is cut off: its next Hello repairs what it missed.
  void Send(v1::CoordinatorMessage message) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      if (queue_.size() < kMaxQueued) {
        queue_.push_back(std::move(message));
        return;
      }
    }
    Cut(absl::ResourceExhaustedError("the worker does not read its stream"));
  }

  // Blocks for the next message; false when the session is closed.
  bool Receive(v1::CoordinatorMessage* message) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](WorkerSession* self) { return self->closed_ || !self->queue_.empty(); }, this));
    if (closed_) return false;
    *message = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }

  // Ends the stream from the coordinator's side.
  void Cut(absl::Status reason) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    reason_ = std::move(reason);
    cancel_();
  }

  // The stream has ended by itself.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  // Why it was cut; OK when it was not.
  absl::Status reason() {
    absl::MutexLock lock(&mutex_);
    return reason_;
  }

 private:
  const std::string worker_;
  const std::function<void()> cancel_;
  absl::Mutex mutex_;
  std::deque<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_WORKER_SESSION_H_
