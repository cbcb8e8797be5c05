// How tensors are scaled before they are rounded to 8 bits (engine/dtype/fp8.h), on both devices.
//
// Delayed scaling, per tensor: the number that a tensor is multiplied by before it is rounded comes
// from the largest magnitudes (amax) of the steps before, so that no pass over the tensor is needed
// first. A record of floats is a tensor's; UpdateScaling is called once a step:
//
//   float record[kScalingFloats];
//   InitializeScaling(kLargestE4M3, record);
//   ... quantise with record[kScale]; codes times record[kInverse] are the numbers
//   UpdateScaling(amax, record);
//
// The rule. The amax of the last 16 steps are kept. scale = 2^e with the largest integer e, |e| <=
// 126, for which scale x (largest kept amax) is at most the format's largest number. A power of
// two, so that scaling itself rounds nothing, and that a scale which is a little off changes only
// what is tiny. While all kept amax are 0 the scale stays. An amax that is not finite counts as
// none and is not kept: the step that made it is skipped, not learned from. Larger numbers than any
// kept saturate; what is not finite becomes a NaN.
#ifndef MILEPOST_ENGINE_OPS_FP8_FP8_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_FP8_FP8_CONTRACT_H_

#include <bit>
#include <cstdint>

#include "engine/dtype/fp8.h"

namespace milepost::kernels {

// A record: 1 / scale, scale, the place of the next amax in the history, the format's largest
// number, and the history. Records lie at multiples of 128 bytes.
inline constexpr int kAmaxHistory = 16;
inline constexpr int kInverse = 0;
inline constexpr int kScale = 1;
inline constexpr int kNextAmax = 2;
inline constexpr int kLargest = 3;
inline constexpr int kFirstAmax = 4;
inline constexpr int kScalingFloats = 32;

constexpr void InitializeScaling(float largest, float* record) {
  for (int i = 0; i < kScalingFloats; ++i) record[i] = 0;
  record[kInverse] = record[kScale] = 1;
  record[kLargest] = largest;
}

// Whether any step's amax, not 0, is kept.
constexpr bool HasHistory(const float* record) {
  for (int i = 0; i < kAmaxHistory; ++i) {
    if (record[kFirstAmax + i] > 0) return true;
  }
  return false;
}

// From one amax alone; nothing where it is 0 or not finite. The largest number is 1.75 times a
// power of two.
constexpr void SetScale(float amax, float* record) {
  if (!(amax > 0 && amax <= 3.4028235e38f)) return;
  constexpr uint32_t kThreeQuarters = 0x600000u;
  const uint32_t bits = std::bit_cast<uint32_t>(amax);
  const int of_amax = static_cast<int>(bits >> 23) - 127;
  const int of_largest = static_cast<int>(std::bit_cast<uint32_t>(record[kLargest]) >> 23) - 127;
  int e = of_largest - of_amax - ((bits & 0x7fffffu) > kThreeQuarters ? 1 : 0);
  e = e > 126 ? 126 : e < -126 ? -126 : e;
  record[kScale] = std::bit_cast<float>(static_cast<uint32_t>(127 + e) << 23);
  record[kInverse] = std::bit_cast<float>(static_cast<uint32_t>(127 - e) << 23);
}

constexpr void UpdateScaling(float amax, float* record) {
  if (!(amax <= 3.4028235e38f)) return;
  const int next = static_cast<int>(record[kNextAmax]);
  record[kFirstAmax + next] = amax;
  record[kNextAmax] = static_cast<float>((next + 1) % kAmaxHistory);
  float most = 0;
  for (int i = 0; i < kAmaxHistory; ++i) {
    if (record[kFirstAmax + i] > most) most = record[kFirstAmax + i];
  }
  SetScale(most, record);
}

// A matrix [rows, columns] that is made of several, one after another. Each has whole rows.
inline constexpr int kMostStacked = 3;
struct Stacked {
  const bf16* parts[kMostStacked] = {};
  int64_t first_row[kMostStacked] = {};  // of each part; parts that are not there: rows
  int64_t rows = 0;
  int64_t columns = 0;
};

// The largest magnitudes are kept by slots: slot s has those of the tiles numbered s, s +
// kAmaxSlots, ... along the rows. So that they are made in one order everywhere, and by threads
// that share nothing.
inline constexpr int kAmaxSlots = 1024;
inline constexpr int64_t kFp8TileRows = 128;
inline constexpr int64_t kFp8TileColumns = 64;

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_FP8_FP8_CONTRACT_H_
