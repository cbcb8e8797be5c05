#include "engine/runtime/gpu/device/host_work.h"

#include "absl/strings/str_cat.h"

namespace milepost::runtime {

void HostWork::Run(const std::function<absl::Status()>& work) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || !status_.ok()) return;
    ++running_;
  }
  const absl::Status status = work();
  // Notified under the lock: who is waiting may destroy this as soon as it is let go.
  std::lock_guard lock(mutex_);
  status_.Update(status);
  --running_;
  ended_.notify_all();
}

absl::Status HostWork::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

absl::Status HostWork::Stop(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  if (ended_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [&] { return running_ == 0; })) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the host's work for a GPU is not done after ", absl::FormatDuration(timeout)));
}

}  // namespace milepost::runtime
