// Stores log lines on a thread of its own, so that a slow disk holds up nobody but those who log.
//
//   LogWriter writer([&](const v1::LogBatch& batch) { ... store ... });
//   writer.Write(std::move(batch), [] { ... it is stored ... });
//
// What waits is bounded by the callers: each waits for `done` before it writes more. Thread-safe.
#ifndef MILEPOST_COORDINATOR_DESKS_LOG_WRITER_H_
#define MILEPOST_COORDINATOR_DESKS_LOG_WRITER_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::coordinator {

class LogWriter {
 public:
  explicit LogWriter(std::function<void(const v1::LogBatch&)> store)
      : store_(std::move(store)), thread_([this] { Run(); }) {}
  ~LogWriter() { Stop(); }

  // `done` is called from the writer's thread, or at once after Stop.
  void Write(v1::LogBatch batch, std::function<void()> done) {
    {
      absl::MutexLock lock(&mutex_);
      if (!stopping_) return waiting_.push_back({std::move(batch), std::move(done)});
    }
    done();
  }

  // Stores what waits. Idempotent.
  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Item {
    v1::LogBatch batch;
    std::function<void()> done;
  };

  void Run() {
    while (true) {
      Item item;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](LogWriter* self) { return self->stopping_ || !self->waiting_.empty(); }, this));
        if (waiting_.empty()) return;
        item = std::move(waiting_.front());
        waiting_.pop_front();
      }
      store_(item.batch);
      item.done();
    }
  }

  const std::function<void(const v1::LogBatch&)> store_;
  absl::Mutex mutex_;
  std::deque<Item> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_LOG_WRITER_H_
