#include "client/cli/job_watcher.h"

#include <sys/eventfd.h>

#include <utility>

#include "common/check.h"

namespace milepost::client {

JobWatcher::JobWatcher(std::shared_ptr<Connection> connection, const std::string& job)
    : connection_(std::move(connection)), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MP_CHECK(fd_.ok());
  thread_ = std::thread([this, job] {
    const absl::Status status = JobClient(connection_).Watch(job, [this](const v1::Job& now) {
      std::lock_guard lock(mutex_);
      latest_ = now;
      Notify();
      return true;
    });
    std::lock_guard lock(mutex_);
    ended_ = status;
    Notify();
  });
}

JobWatcher::~JobWatcher() {
  connection_->Cancel();
  thread_.join();
}

void JobWatcher::Notify() {
  const uint64_t one = 1;
  MP_CHECK(write(fd_.get(), &one, sizeof one) == sizeof one);
}

std::optional<v1::Job> JobWatcher::Take() {
  std::lock_guard lock(mutex_);
  uint64_t count;
  while (read(fd_.get(), &count, sizeof count) > 0) {
  }
  return std::exchange(latest_, std::nullopt);
}

std::optional<absl::Status> JobWatcher::ended() {
  std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace milepost::client
