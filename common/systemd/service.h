// What a daemon tells systemd about itself (sd_notify(3)), for units of Type=notify.
//
//   Service service;
//   service.Ready("serving on 0.0.0.0:7070");
//   // in the loop that decides:
//   service.Alive();
//   service.Status("3 jobs run, 2 wait; 4 workers");
//
// Where there is no systemd every call does nothing. Thread-safe; never blocks for long.
#ifndef MILEPOST_COMMON_SYSTEMD_SERVICE_H_
#define MILEPOST_COMMON_SYSTEMD_SERVICE_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost {

class Service {
 public:
  Service();  // looks at NOTIFY_SOCKET and WATCHDOG_USEC

  // The daemon does what it is there for; also after Reloading.
  void Ready(const std::string& status);
  // Its configuration is read again.
  void Reloading();
  // It ends, and wants `time` for that whatever the unit's TimeoutStopSec is.
  void Stopping(absl::Duration time);
  // A line for `systemctl status`; sent when it differs from the last one.
  void Status(const std::string& status);
  // From the loop whose standstill is to end the process; as often as one likes, at least once in
  // `watchdog()`.
  void Alive();

  // How long systemd waits for Alive; infinite: for ever.
  absl::Duration watchdog() const { return watchdog_; }

 private:
  const absl::Duration watchdog_;
  absl::Mutex mutex_;
  absl::Time alive_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // of a steady clock
  std::string status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_SYSTEMD_SERVICE_H_
