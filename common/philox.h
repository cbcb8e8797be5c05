// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): a pure
// function from a 128-bit counter and a 64-bit key to 128 random bits. Any element of a random
// tensor can be computed alone, in any order, on any rank.
//
//   std::array<uint32_t, 4> words = Philox4x32({0, 0, 0, 0}, {seed_low, seed_high});
//
// Thread-safe, constexpr, no state.
#ifndef MILEPOST_COMMON_PHILOX_H_
#define MILEPOST_COMMON_PHILOX_H_

#include <array>
#include <cstdint>

namespace milepost {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key = {key[0] + kPhiloxWeyl0, key[1] + kPhiloxWeyl1};
  }
  return counter;
}

// Derives a key from a (seed, stream) pair by two rounds of the SplitMix64 finaliser. So
// neighbouring seeds and streams have nothing in common.
constexpr std::array<uint32_t, 2> PhiloxKey(uint64_t seed, uint64_t stream) {
  auto mix = [](uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  };
  const uint64_t key = mix(mix(seed) ^ stream);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_PHILOX_H_
