// Time for deadlines and waits, by a clock that nobody sets. Its differences mean something, the
// times themselves do not.
//
//   const absl::Time give_up = SteadyNow() + absl::Seconds(60);
#ifndef MILEPOST_COMMON_STEADY_TIME_H_
#define MILEPOST_COMMON_STEADY_TIME_H_

#include <chrono>

#include "absl/time/time.h"

namespace milepost {

// Thread-safe.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// The same in seconds, for what is measured. Thread-safe.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_STEADY_TIME_H_
