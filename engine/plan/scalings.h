// Where the scalings of 8-bit tensors lie (ops/fp8/fp8_contract.h): a
// record of floats each, end to end in one persistent buffer; and the largest magnitudes of a step,
// by slots, in another one.
#ifndef MILEPOST_ENGINE_PLAN_SCALINGS_H_
#define MILEPOST_ENGINE_PLAN_SCALINGS_H_

#include <cstdint>

namespace milepost::plan {

inline constexpr int64_t kScalingFloats = 32;  // of a record
inline constexpr int64_t kAmaxSlots = 1024;
inline constexpr int64_t kMostParts = 3;  // matrices whose codes are laid on each other

inline constexpr int64_t kScalingBytes = 4 * kScalingFloats;
inline constexpr int64_t kAmaxBytes = 4 * kAmaxSlots;

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_SCALINGS_H_
