#include "client/cli/log_follower.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "common/check.h"
#include "common/proto_time.h"

namespace milepost::client {

LogFollower::LogFollower(std::shared_ptr<Connection> connection, const std::string& job,
                         absl::Time since)
    : connection_(std::move(connection)), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MP_CHECK(fd_.ok());
  v1::StreamLogsRequest request;
  request.set_name(job);
  request.set_follow(true);
  *request.mutable_since() = ToProto(since);
  thread_ = std::thread([this, request] {
    // Its end tells nothing that the job's own state does not.
    JobClient(connection_)
        .StreamLogs(request,
                    [this](const v1::LogLine& line) {
                      std::unique_lock lock(mutex_);
                      taken_.wait(lock, [&] { return lines_.size() < kMostLines || leaving_; });
                      lines_.push_back(line);
                      NotifyLocked();
                      return !leaving_;
                    })
        .IgnoreError();
    std::lock_guard lock(mutex_);
    ended_ = true;
    NotifyLocked();
  });
}

LogFollower::~LogFollower() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  taken_.notify_all();
  connection_->Cancel();
  thread_.join();
}

void LogFollower::NotifyLocked() {
  const uint64_t one = 1;
  MP_CHECK(write(fd_.get(), &one, sizeof one) == sizeof one);
}

std::vector<v1::LogLine> LogFollower::Take() {
  std::lock_guard lock(mutex_);
  uint64_t count;
  while (read(fd_.get(), &count, sizeof count) > 0) {
  }
  taken_.notify_all();
  return std::exchange(lines_, {});
}

bool LogFollower::ended() {
  std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace milepost::client
