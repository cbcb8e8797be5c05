// Time as an argument. Decisions take an absl::Time. The code around them asks a Clock, which tests
// replace.
#ifndef MILEPOST_COMMON_CLOCK_H_
#define MILEPOST_COMMON_CLOCK_H_

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace milepost {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;

  // The system's clock. It lives as long as the process.
  static Clock* Real();
};

// FAILED_PRECONDITION, with the remedy: `now` is too early to be right. A host without a battery
// begins in 1970, or before it because of its time zone. Then gRPC aborts, certificates are not
// valid yet, and the times of records mean nothing.
absl::Status CheckWallClock(absl::Time now);

}  // namespace milepost

#endif  // MILEPOST_COMMON_CLOCK_H_
