// Division that rounds up, and sizes that are multiples of something. Pure.
//
//   RoundUp(100, 64)  // 128
//   CeilDiv(100, 64)  // 2
//
// Values must be at least 0 and divisors at least 1. Their sum must fit the type.
#ifndef MILEPOST_COMMON_ROUND_UP_H_
#define MILEPOST_COMMON_ROUND_UP_H_

#include <cstdint>

namespace milepost {

constexpr int64_t CeilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return CeilDiv(value, multiple) * multiple;
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_ROUND_UP_H_
