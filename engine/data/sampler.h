// The order in which samples are visited. It is computed, never stored.
//
//   SampleOrder order(/*samples=*/dataset.samples(), seed);
//   int64_t sample = order.SampleAt(k);   // k-th sample of the run, whatever the world size
//
// Each epoch visits every sample once, in its own permutation, which depends only on (samples,
// seed, epoch). O(1) memory, and O(1) expected time per sample. Immutable and thread-safe.
#ifndef MILEPOST_ENGINE_DATA_SAMPLER_H_
#define MILEPOST_ENGINE_DATA_SAMPLER_H_

#include <array>
#include <cstdint>

namespace milepost::data {

// A bijection of [0, n), n >= 1: an 8-round Feistel network over the next even power of two,
// repeated until the value is inside. Checkpoints rely on these values for the data order, so they
// never change.
class Permutation {
 public:
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch);
  uint64_t operator()(uint64_t index) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t Encrypt(uint64_t value) const;

  uint64_t n_;
  int half_bits_;
  uint64_t mask_;
  std::array<uint64_t, kRounds> keys_;
};

class SampleOrder {
 public:
  SampleOrder(int64_t samples, uint64_t seed) : samples_(samples), seed_(seed) {}

  int64_t EpochOf(int64_t global_sample) const { return global_sample / samples_; }
  // global_sample >= 0.
  int64_t SampleAt(int64_t global_sample) const {
    return static_cast<int64_t>(PermutationOf(EpochOf(global_sample))(global_sample % samples_));
  }
  // Use it for many samples of one epoch.
  Permutation PermutationOf(int64_t epoch) const { return Permutation(samples_, seed_, epoch); }
  int64_t samples() const { return samples_; }

 private:
  int64_t samples_;
  uint64_t seed_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_SAMPLER_H_
