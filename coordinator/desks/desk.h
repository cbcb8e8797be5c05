// What every desk has at hand. A desk answers one kind of question: it reads the state under the
// loop's lock, and changes it through the loop alone.
//
// Desks are thread-safe. Calls that change state wait for a write, calls that read never do. When a
// change cannot be stored it did not happen: the caller gets the error.
#ifndef MILEPOST_COORDINATOR_DESKS_DESK_H_
#define MILEPOST_COORDINATOR_DESKS_DESK_H_

#include <atomic>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "coordinator/desks/options.h"
#include "coordinator/loop/loop.h"
#include "coordinator/loop/loop_thread.h"

namespace milepost::coordinator {

class Store;

// All outlive the desks.
struct DeskTools {
  Loop* loop = nullptr;
  Store* store = nullptr;
  const CoordinatorOptions* options = nullptr;
  Clock* clock = nullptr;
  // Set before Loop::mutex() is taken to wake who waits.
  const std::atomic<bool>* stopping = nullptr;
};

// That holds now.
inline LiveValues ValuesOf(const CoordinatorOptions& options) {
  if (options.live != nullptr) return options.live->Get();
  return {options.config, options.most_job_bytes};
}

class Desk {
 protected:
  explicit Desk(const DeskTools& tools)
      : loop_(*tools.loop),
        mutex_(loop_.mutex()),
        state_(loop_.own_state()),
        store_(tools.store),
        options_(*tools.options),
        clock_(tools.clock),
        stopping_(*tools.stopping) {}
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  // Posts and waits. The job that the event was about.
  absl::StatusOr<std::string> Do(Event event) { return coordinator::Do(&loop_, std::move(event)); }
  absl::StatusOr<std::string> Do(Loop::Entry entry) {
    return coordinator::Do(&loop_, std::move(entry));
  }
  LiveValues Values() const { return ValuesOf(options_); }

  Loop& loop_;
  absl::Mutex& mutex_;  // the loop's
  const State& state_ ABSL_GUARDED_BY(mutex_);
  Store* const store_;
  const CoordinatorOptions& options_;
  Clock* const clock_;
  const std::atomic<bool>& stopping_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_DESK_H_
