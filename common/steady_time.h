// Time for deadlines and waits, from a clock that nobody sets. Only differences between its times
// have a meaning.
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

// The same in seconds, for measurements. Thread-safe.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_STEADY_TIME_H_
