// Makes the ranks of a script stop at the same step (stop_page.h).
//
//   StopAgreement agreement(&page, world, connect);
//   agreement.Stop();   // every rank calls it, sooner or later
//
// Its thread waits until the script uses the page, then connects the ranks, so that a stop needs no
// coordinator. Where the ranks cannot agree, each one stops at its own next step, with a warning.
// Thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_STOP_AGREEMENT_H_
#define MILEPOST_WORKER_SCRIPT_STOP_AGREEMENT_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/comm/communicator.h"
#include "worker/script/stop_page.h"

namespace milepost::worker {

class StopAgreement {
 public:
  // Connects the ranks, or gives up soon after `give_up` returns true. Blocks.
  using Connect = std::function<absl::StatusOr<std::unique_ptr<comm::Communicator>>(
      const std::function<bool()>& give_up)>;

  // `page` outlives it.
  StopAgreement(StopPage* page, int world, Connect connect);
  ~StopAgreement();  // blocks until `connect` has given up
  StopAgreement(const StopAgreement&) = delete;
  StopAgreement& operator=(const StopAgreement&) = delete;

  void Stop();

 private:
  void Run();
  absl::Status Meet();
  void Agree(const absl::Status& met);
  bool Ending() const;
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ending_ || stop_time_ < absl::InfiniteFuture();
  }

  StopPage* const page_;
  const int world_;
  const Connect connect_;
  mutable absl::Mutex mutex_;
  absl::Time stop_time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<comm::Communicator> communicator_;  // set under mutex_, used by the thread
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_STOP_AGREEMENT_H_
