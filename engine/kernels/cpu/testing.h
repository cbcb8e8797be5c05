// What the kernels' tests share: random inputs, aligned memory, thread counts. Tests only.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_TESTING_H_
#define MILEPOST_ENGINE_KERNELS_CPU_TESTING_H_

#include <omp.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

#include "engine/kernels/cpu/types.h"

namespace milepost::kernels {

// 64-byte aligned bytes, filled with 0xff (a NaN in every type) so that reading what nobody wrote
// shows.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes)
      : data_(static_cast<char*>(::operator new (bytes + 64, std::align_val_t{64}))) {
    for (size_t i = 0; i < bytes; ++i) data_[i] = '\xff';
  }
  ~AlignedBuffer() { ::operator delete (data_, std::align_val_t{64}); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  void* data() { return data_; }

 private:
  char* data_;
};

// Normal values, rounded to T.
template <typename T>
std::vector<T> RandomVector(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(n);
  for (T& value : values) value = FromFloat<T>(scale * normal(generator));
  return values;
}

// Sets OpenMP's thread count for a scope.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_TESTING_H_
