// What a daemon reports about itself to systemd (sd_notify(3)), for units of Type=notify.
//
//   Service service;
//   service.Ready("serving on 0.0.0.0:7070");
//   // in the loop that makes the decisions:
//   service.Alive();
//   service.Status("3 jobs run, 2 wait; 4 workers");
//
// Without systemd every call does nothing. Thread-safe. Never blocks for long.
#ifndef MILEPOST_COMMON_SYSTEMD_SERVICE_H_
#define MILEPOST_COMMON_SYSTEMD_SERVICE_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost {

class Service {
 public:
  Service();  // reads NOTIFY_SOCKET and WATCHDOG_USEC

  // Says that the daemon serves. Call it also after Reloading.
  void Ready(const std::string& status);
  // Says that the daemon reads its configuration again.
  void Reloading();
  // Says that the daemon ends and needs `time` for this, whatever the unit's TimeoutStopSec is.
  void Stopping(absl::Duration time);
  // Sets the line in `systemctl status`. It is sent only when it differs from the last one.
  void Status(const std::string& status);
  // Call it from the loop that must not hang: as often as you like, at least once in `watchdog()`.
  // When the calls stop, systemd ends the process.
  void Alive();

  // How long systemd waits for Alive. Infinite: for ever.
  absl::Duration watchdog() const { return watchdog_; }

 private:
  const absl::Duration watchdog_;
  absl::Mutex mutex_;
  absl::Time alive_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // of a steady clock
  std::string status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_SYSTEMD_SERVICE_H_
