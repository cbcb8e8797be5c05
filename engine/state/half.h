// The 16-bit numbers of files, as the bits that are stored, to float and back: engine/dtype/half.h
// says how they are rounded. Pure and thread-safe.
#ifndef MILEPOST_ENGINE_STATE_HALF_H_
#define MILEPOST_ENGINE_STATE_HALF_H_

#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::state {

inline float Bf16ToF32(uint16_t bits) { return ToFloat(bf16{bits}); }
inline float F16ToF32(uint16_t bits) { return ToFloat(f16{bits}); }
inline uint16_t F32ToBf16(float value) { return ToBf16(value).bits; }
inline uint16_t F32ToF16(float value) { return ToF16(value).bits; }

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_HALF_H_
