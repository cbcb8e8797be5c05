// Time as an argument: decisions take an absl::Time; the code around them asks a Clock, which a
// test replaces.
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

  // The system's clock; lives for the whole process.
  static Clock* Real();
};

// FAILED_PRECONDITION, with the remedy: a host without a battery begins in 1970, or before it by
// its time zone; then gRPC aborts, certificates are not valid yet, and no record's time means
// anything.
absl::Status CheckWallClock(absl::Time now);

}  // namespace milepost

#endif  // MILEPOST_COMMON_CLOCK_H_
