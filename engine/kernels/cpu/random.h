// Counter-based randomness for kernels: values depend on (seed, stream, step, element) and on
// nothing else, not on threads, vector width, or how a tensor is split.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_RANDOM_H_
#define MILEPOST_ENGINE_KERNELS_CPU_RANDOM_H_

#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::kernels {

// p == 0 means no dropout. The element index of element [row, column] of a call is
// first_element + row * width + column; a rank or micro-step sets first_element to (global sample
// row of its first row) * width. Fastest where first_element and width are multiples of 64.
// Where a rank has a part of each sample, `run` are the elements of a part and `gap` those between
// two.
struct DropoutParams {
  float p = 0.0f;  // probability of dropping, [0, 1); what is kept is scaled by 1 / (1 - p)
  uint64_t seed = 0;
  uint64_t stream = 0;  // which purpose and tensor: any injective number
  uint64_t step = 0;
  uint64_t first_element = 0;
  uint64_t run = 0;  // 0: there are no gaps
  uint64_t gap = 0;

  // Of element `offset` of the call; and how many from there on are neighbours, `count` at most.
  uint64_t Element(uint64_t offset) const {
    return first_element + offset + (run == 0 ? 0 : offset / run * gap);
  }
  int64_t Neighbours(uint64_t offset, int64_t count) const {
    if (run == 0) return count;
    const uint64_t left = run - offset % run;
    return left < static_cast<uint64_t>(count) ? static_cast<int64_t>(left) : count;
  }
};

// The multiplier of `count` elements of a call, from its element `offset` on: 0 or 1 / (1 - p). For
// tests and for callers that do not fuse; kernels do the same inside. Serial.
void DropoutMultipliers(const DropoutParams& params, uint64_t offset, int64_t count, float* out);

// out[i] = mean + stddev * normal(first_element + i). Parallel.
void NormalInit(float* out, int64_t n, float mean, float stddev, uint64_t seed, uint64_t stream,
                uint64_t first_element);
// out[i] = bound * uniform(first_element + i), above -bound and at most bound. Parallel.
void UniformInit(float* out, int64_t n, float bound, uint64_t seed, uint64_t stream,
                 uint64_t first_element);

// Where the random numbers of a rounding come from; as DropoutParams.
struct RoundingParams {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t step = 0;
  uint64_t first_element = 0;  // index of in[0]
};

// Rounds each value to one of its two bf16 neighbours, with probabilities that make the expected
// result the value itself; what bf16 has stays as it is. Magnitudes beyond the largest bf16 may
// become infinite; infinities and NaNs stay. Serial.
void RoundToBf16AtRandom(const float* in, int64_t n, const RoundingParams& params, bf16* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_RANDOM_H_
