// The thread that steps the process's loop: it writes when the loop has something to write, and
// sleeps when the loop has nothing to do. All that is to be decided is in the loop.
//
//   LoopThread thread(&loop, {.write = [&](const Outcome& o) { return store->Write(o); }});
//   MP_RETURN_IF_ERROR(thread.Begin(events));
//   thread.Start();
//   MP_ASSIGN_OR_RETURN(const std::string job, Do(&loop, JobCancelled{"jobs/7"}));
//   thread.Stop();
//
// Thread-safe, but for Begin and Start, which come first.
#ifndef MILEPOST_COORDINATOR_LOOP_LOOP_THREAD_H_
#define MILEPOST_COORDINATOR_LOOP_LOOP_THREAD_H_

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/loop/loop.h"

namespace milepost::coordinator {

// Posts the entry, and waits for its answer. Its `done` is replaced.
absl::StatusOr<std::string> Do(Loop* loop, Loop::Entry entry);
absl::StatusOr<std::string> Do(Loop* loop, Event event);

class LoopThread {
 public:
  struct Work {
    // Durable when it answers OK. Blocks on the disk.
    std::function<absl::Status(const Outcome&)> write;
    std::function<void()> after_turn;  // may be empty
  };

  // `loop` outlives the thread. Its host calls Wake.
  LoopThread(Loop* loop, Work work) : loop_(*loop), work_(std::move(work)) {}
  ~LoopThread() { Stop(); }

  // Before Start: one decision, by the caller's thread.
  absl::Status Begin(std::vector<Event> events);
  void Start();
  void Wake();
  // Closes the loop; all that waits has been answered when it returns. Idempotent.
  void Stop();

 private:
  void Run();

  Loop& loop_;
  const Work work_;
  absl::Mutex mutex_;
  absl::CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_LOOP_LOOP_THREAD_H_
