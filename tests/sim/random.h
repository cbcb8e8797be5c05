// The only source of chance in a simulation: the same seed gives the same numbers on every machine.
#ifndef MILEPOST_TESTS_SIM_RANDOM_H_
#define MILEPOST_TESTS_SIM_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/time/time.h"

namespace milepost::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed * 0x9e3779b97f4a7c15ULL + 1) {}

  // In [low, high].
  int64_t Int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits_() % static_cast<uint64_t>(high - low + 1));
  }
  // In [0, 1).
  double Unit() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Unit() < probability; }
  absl::Duration Time(absl::Duration low, absl::Duration high) {
    return low + (high - low) * Unit();
  }
  // As often between 1 and 10 times `low` as between 10 and 100 times.
  absl::Duration LogTime(absl::Duration low, absl::Duration high) {
    return low * std::pow(absl::FDivDuration(high, low), Unit());
  }
  // Until the next of events that have nothing to do with each other.
  absl::Duration Until(absl::Duration mean) { return mean * -std::log(1 - Unit()); }
  template <typename T>
  const T& Of(const std::vector<T>& all) {
    return all[static_cast<size_t>(Int(0, static_cast<int64_t>(all.size()) - 1))];
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_RANDOM_H_
