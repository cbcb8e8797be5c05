// Which stream of the counter-based generator belongs to which purpose: (seed, stream) keys
// common/philox.h, so no two purposes or tensors ever share numbers.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_RANDOMNESS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_RANDOMNESS_H_

#include <cstdint>

namespace milepost::runtime {

enum class RandomPurpose : uint32_t {
  kDropout = 1,      // tensor: the op's dropout tag
  kInitialize = 2,   // tensor: the parameter's index
  kGenerate = 3,     // tensor: 0
  kRoundM = 4,       // tensor: the parameter's index
  kRoundV = 5,       // the same
  kRoundMaster = 6,  // the same: parameters that are their own masters
  kRoundState2 = 7,  // the same: an optimizer's third and fourth state
  kRoundState3 = 8,
  kLeftFactor = 9,    // the same: of a gradient that travels as factors
  kRightFactor = 10,  // the same
};

// Of an optimizer's state, by its place among them.
constexpr RandomPurpose RoundsState(int state) {
  constexpr RandomPurpose kPurposes[] = {RandomPurpose::kRoundM, RandomPurpose::kRoundV,
                                         RandomPurpose::kRoundState2, RandomPurpose::kRoundState3};
  return kPurposes[state];
}

constexpr uint64_t RandomStream(RandomPurpose purpose, uint32_t tensor) {
  return (uint64_t{static_cast<uint32_t>(purpose)} << 32) | tensor;
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_RANDOMNESS_H_
