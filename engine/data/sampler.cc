#include "engine/data/sampler.h"

#include <bit>

#include "common/check.h"

namespace milepost::data {
namespace {

// Stafford's variant 13 of the murmur finaliser, as in SplitMix64: every input bit reaches every
// output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
  MP_CHECK(n >= 1);
  const int bits = n == 1 ? 1 : std::bit_width(n - 1);
  half_bits_ = (bits + 1) / 2;
  mask_ = (uint64_t{1} << half_bits_) - 1;
  uint64_t key = Mix(Mix(seed + 0x9e3779b97f4a7c15u) ^ (epoch * 0xd1342543de82ef95u + 1));
  for (uint64_t& round_key : keys_) {
    key += 0x9e3779b97f4a7c15u;
    round_key = Mix(key);
  }
}

uint64_t Permutation::Encrypt(uint64_t value) const {
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask_;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (Mix(right ^ key) & mask_);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  MP_CHECK(index < n_) << index << " of " << n_;
  // The network's domain is less than four times n: a few steps on average. Walking a bijection's
  // cycle from inside always comes back inside, so it ends.
  uint64_t value = Encrypt(index);
  while (value >= n_) value = Encrypt(value);
  return value;
}

}  // namespace milepost::data
