// The two passes of a resize, vectorised. Internal to resample.cc.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_RESAMPLE_PASSES_H_
#define MILEPOST_ENGINE_DATA_IMAGES_RESAMPLE_PASSES_H_

#include <cstdint>

#include "engine/data/images/resample.h"

namespace milepost::data {

inline constexpr int kWeightBits = 22;  // 255 * 2^22 is below 2^30: sums stay within int32

// Resamples one row: `width` RGB pixels from `in`, the last one first if `flip`. Writes one byte
// beyond them. Unless `exact_end`, it reads one byte beyond the last input pixel.
void ResampleRow(const uint8_t* in, const Resampler::Weights& weights, int64_t width, bool flip,
                 bool exact_end, uint8_t* out);

// Resamples one row of `bytes` from `count` rows that follow each other at `in`.
void ResampleColumn(const uint8_t* in, const int32_t* weights, int64_t count, int64_t bytes,
                    uint8_t* out);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_RESAMPLE_PASSES_H_
