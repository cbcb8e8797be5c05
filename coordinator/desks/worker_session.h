// What is to be sent to one worker's stream: a bounded queue between decisions and the stream,
// which writes one message after the other. Thread-safe.
#ifndef MILEPOST_COORDINATOR_DESKS_WORKER_SESSION_H_
#define MILEPOST_COORDINATOR_DESKS_WORKER_SESSION_H_

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/error_details.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::coordinator {

class WorkerSession {
 public:
  static constexpr size_t kMaxQueued = 4096;

  // What the session asks of its stream. Called with the session's lock held, never after Close:
  // neither may block or call back.
  struct Stream {
    // Starts to write the message, which stays as it is until Written.
    std::function<void(const v1::CoordinatorMessage*)> write;
    // Ends the stream. Called at most once.
    std::function<void()> cancel;
  };

  WorkerSession(std::string worker, Stream stream)
      : worker_(std::move(worker)), stream_(std::move(stream)) {}

  const std::string& worker() const { return worker_; }

  // A worker that does not read its stream is cut off: its next Hello repairs what it missed.
  void Send(v1::CoordinatorMessage message) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      if (queue_.size() < kMaxQueued) {
        queue_.push_back(std::move(message));
        if (queue_.size() == 1) stream_.write(&queue_.front());
        return;
      }
    }
    Cut(Refusal(v1::ERROR_REASON_WORKER_TOO_SLOW, worker_, "the worker does not read its stream"));
  }

  // The message is written, or will never be: on to the next. False when there is none.
  bool Written() {
    absl::MutexLock lock(&mutex_);
    queue_.pop_front();
    if (closed_) queue_.clear();
    if (!queue_.empty()) stream_.write(&queue_.front());
    return !queue_.empty();
  }

  // Ends the stream from the coordinator's side.
  void Cut(absl::Status reason) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    reason_ = std::move(reason);
    stream_.cancel();
  }

  // The stream ends.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  // No message is being written.
  bool idle() {
    absl::MutexLock lock(&mutex_);
    return queue_.empty();
  }

  // Why it was cut; OK when it was not.
  absl::Status reason() {
    absl::MutexLock lock(&mutex_);
    return reason_;
  }

 private:
  const std::string worker_;
  const Stream stream_;
  absl::Mutex mutex_;
  // The first one is being written.
  std::deque<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_WORKER_SESSION_H_
