// Counter-based randomness within kernels: the same numbers as the CPU's (cpu/random.h), so that
// masks and roundings do not depend on the device. Host side: what a launch is given.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_RANDOM_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_RANDOM_H_

#include <array>
#include <cstdint>

#include "common/philox.h"
#include "engine/kernels/cuda/context.h"

namespace milepost::kernels::cuda {

// In device memory, written before each micro-step.
struct StepPosition {
  uint64_t step = 0;
  uint64_t first_sample = 0;  // of this rank's micro-batch, in the global sample order
};

// p == 0: none, and nothing else is read. The element index of an element of the tensor is
// position->first_sample * elements_per_sample + its index in it, as DropoutParams has it. Where a
// rank has a part of each sample, the tensor has `own_elements` of each, which begin `own_begin`
// after the sample does.
struct DropoutArgs {
  float p = 0;
  uint64_t seed = 0;
  uint64_t stream = 0;
  const StepPosition* position = nullptr;  // device memory
  uint64_t elements_per_sample = 0;
  uint64_t own_begin = 0;
  uint64_t own_elements = 0;  // 0: all
};

using RandomKey = std::array<uint32_t, 2>;

// The same, as a kernel carries it.
struct DropoutMask {
  uint32_t threshold = 0;
  float keep = 1;
  RandomKey key = {};
  const StepPosition* position = nullptr;
  uint64_t elements_per_sample = 0;
  uint64_t own_begin = 0;
  uint64_t own_elements = 0;

  // Of the tensor's element `index`. Its sample is counted: there are few, and a division of 64
  // bits is a call that spills registers.
  MP_DEVICE uint64_t ElementOf(uint64_t first_sample, uint64_t index) const {
    uint64_t sample = first_sample;
    if (own_elements > 0) {
      for (; index >= own_elements; index -= own_elements) ++sample;
    }
    return sample * elements_per_sample + own_begin + index;
  }
  // Whether groups of 64 elements of the tensor are groups of the stream.
  bool InGroups() const {
    return elements_per_sample % 64 == 0 && own_begin % 64 == 0 && own_elements % 64 == 0;
  }
};

inline DropoutMask MaskOf(const DropoutArgs& args) {
  if (args.p <= 0) return {};
  return {.threshold = static_cast<uint32_t>(static_cast<double>(args.p) * 4294967296.0),
          .keep = 1.0f / (1.0f - args.p),
          .key = PhiloxKey(args.seed, args.stream),
          .position = args.position,
          .elements_per_sample = args.elements_per_sample,
          .own_begin = args.own_begin,
          .own_elements = args.own_elements};
}

using RandomWords = std::array<uint32_t, 4>;

// Random words of elements e, e + 16, e + 32 and e + 48, where e % 64 < 16.
MP_DEVICE RandomWords WordsOf(uint64_t element, uint64_t step, const RandomKey& key) {
  const uint64_t counter = element / 64 * 16 + element % 16;
  return Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                     static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)},
                    key);
}

// That of any one element; costs as much as four.
MP_DEVICE uint32_t WordOf(uint64_t element, uint64_t step, const RandomKey& key) {
  const RandomWords words = WordsOf(element - element % 64 / 16 * 16, step, key);
  const auto which = static_cast<int>(element % 64 / 16);
  return which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
}

// The multipliers of 32 elements, 8 at each of e, e + 16, e + 32 and e + 48, where e % 64 is 0
// or 8.
struct MaskItem {
  float keep[4][8];
};
MP_DEVICE MaskItem MaskOfItem(const DropoutMask& mask, uint64_t element, uint64_t step) {
  MaskItem item;
  MP_UNROLL
  for (int i = 0; i < 8; ++i) {
    const RandomWords words = WordsOf(element + i, step, mask.key);
    MP_UNROLL
    for (int j = 0; j < 4; ++j) item.keep[j][i] = words[j] >= mask.threshold ? mask.keep : 0.0f;
  }
  return item;
}
MP_DEVICE float MaskOfElement(const DropoutMask& mask, uint64_t element, uint64_t step) {
  return WordOf(element, step, mask.key) >= mask.threshold ? mask.keep : 0.0f;
}

// To one of the two neighbouring bf16, up as often as what is cut off is large; infinities and NaNs
// stay. `half`: the upper 16 bits of the element's random word.
MP_DEVICE bf16 RoundAtRandom(float value, uint16_t half) {
  if (!(fabsf(value) < INFINITY)) return Narrow<bf16>(value);
  const uint32_t bits = std::bit_cast<uint32_t>(value) + half;
  return {static_cast<uint16_t>(bits >> 16)};
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_RANDOM_H_
