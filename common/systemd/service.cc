#include "common/systemd/service.h"

#include <systemd/sd-daemon.h>
#include <time.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/steady_time.h"

namespace milepost {
namespace {

// Of the time that systemd waits, until it hears again.
constexpr double kAliveShare = 0.25;

absl::Duration WatchdogTime() {
  uint64_t microseconds = 0;
  return sd_watchdog_enabled(/*unset_environment=*/0, &microseconds) > 0
             ? absl::Microseconds(static_cast<int64_t>(microseconds))
             : absl::InfiniteDuration();
}

// A message is lines.
std::string OneLine(const std::string& status) {
  return absl::StrReplaceAll(status, {{"\n", " "}});
}

// Who is not heard has nobody to complain to.
void Notify(const std::string& message) { sd_notify(/*unset_environment=*/0, message.c_str()); }

}  // namespace

Service::Service() : watchdog_(WatchdogTime()) {}

void Service::Ready(const std::string& status) {
  absl::MutexLock lock(&mutex_);
  status_ = status;
  Notify(absl::StrCat("READY=1\nSTATUS=", OneLine(status)));
}

void Service::Reloading() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  Notify(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=",
                      absl::ToInt64Microseconds(absl::DurationFromTimespec(now))));
}

void Service::Stopping(absl::Duration time) {
  Notify(absl::StrCat("STOPPING=1\nSTATUS=stopping\nEXTEND_TIMEOUT_USEC=",
                      absl::ToInt64Microseconds(time)));
}

void Service::Status(const std::string& status) {
  absl::MutexLock lock(&mutex_);
  if (status == status_) return;
  status_ = status;
  Notify(absl::StrCat("STATUS=", OneLine(status)));
}

void Service::Alive() {
  const absl::Time now = SteadyNow();
  absl::MutexLock lock(&mutex_);
  if (now < alive_ + watchdog_ * kAliveShare) return;
  alive_ = now;
  Notify("WATCHDOG=1");
}

}  // namespace milepost
