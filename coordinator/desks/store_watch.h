// When a coordinator gives its store up: the file system answers errors that do not pass by
// themselves. RocksDB takes no writes after one until it is opened again, and another host may
// still reach the same directory, so the process should end: a supervisor or a standby goes on.
//
//   StoreWatch watch(absl::Seconds(15));
//   if (watch.Wrote(store.Write(...), SteadyNow())) EndTheProcess();
//
// Thread-compatible.
#ifndef MILEPOST_COORDINATOR_DESKS_STORE_WATCH_H_
#define MILEPOST_COORDINATOR_DESKS_STORE_WATCH_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

class StoreWatch {
 public:
  explicit StoreWatch(absl::Duration patience) : patience_(patience) {}

  // How a write ended. True: for `patience` every one has failed. A full disk (RESOURCE_EXHAUSTED)
  // does not count: it passes when somebody makes room, and is as full for a standby.
  bool Wrote(const absl::Status& status, absl::Time now) {
    if (status.ok() || absl::IsResourceExhausted(status)) {
      failing_since_ = absl::InfiniteFuture();
      return false;
    }
    if (failing_since_ == absl::InfiniteFuture()) failing_since_ = now;
    return now - failing_since_ >= patience_;
  }

 private:
  const absl::Duration patience_;
  absl::Time failing_since_ = absl::InfiniteFuture();
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_STORE_WATCH_H_
