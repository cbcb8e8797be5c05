// What the host does in a stream's order, on threads of the driver's, as the one that tears down
// sees it: a GPU that has failed ends every wait at once, and what was running on the host when it
// did still runs, in memory that is about to be freed.
//
//   // on the driver's thread:
//   absl::Status Called(Work work) { return host_work.Run(work.issue); }
//   ...
//   MP_RETURN_IF_ERROR(host_work.Stop(absl::Seconds(60)));   // none runs, and none begins any more
//
// Thread-safe.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_WORK_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_WORK_H_

#include <condition_variable>
#include <functional>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace milepost::runtime {

class HostWork {
 public:
  // Calls `work` and keeps its error. After an error of an earlier call, which nothing may build
  // on, and after Stop, it is not called.
  void Run(const std::function<absl::Status()>& work);

  // OK, or the first error.
  absl::Status status() const;

  // Later calls of Run do nothing; waits for those that have begun. DEADLINE_EXCEEDED where they
  // take longer than `timeout`: what they use must stay.
  absl::Status Stop(absl::Duration timeout);

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;
  bool stopped_ = false;
  absl::Status status_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_WORK_H_
