// What the kernels' tests share: random inputs, aligned memory, thread counts. Tests only.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_TESTING_H_
#define MILEPOST_ENGINE_KERNELS_CPU_TESTING_H_

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "engine/dtype/half.h"
#include "hwy/targets.h"

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

// Sets OpenMP's thread count for a scope; one under ThreadSanitizer, which cannot see libgomp.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
#ifdef MILEPOST_TSAN
    threads = 1;
#endif
    omp_set_num_threads(threads);
  }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

// A suite that runs every case on each SIMD target of this machine: derive from it, TEST_P, and
// MP_ON_EVERY_TARGET(Suite).
class OnEveryTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & GetParam()) == 0) GTEST_SKIP() << "not on this CPU";
    hwy::SetSupportedTargetsForTest(GetParam());
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
#define MP_ON_EVERY_TARGET(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Target, suite, testing::Values(HWY_AVX3, HWY_AVX2, HWY_SCALAR), \
                           [](const testing::TestParamInfo<int64_t>& info) {               \
                             return std::string(hwy::TargetName(info.param));              \
                           })

template <typename T>
std::vector<double> ToDouble(const std::vector<T>& values) {
  std::vector<double> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = ToFloat(values[i]);
  return out;
}

// Tolerances against an fp64 reference that starts from the same rounded inputs, relative to the
// largest magnitude of the tensor: sums of fp32 products, or bf16 results (8 bits of mantissa)
// of bf16 intermediates; halves have 11 bits.
template <typename T>
inline constexpr double kTolerance = 2e-5;
template <>
inline constexpr double kTolerance<bf16> = 1.0 / 64;
template <>
inline constexpr double kTolerance<f16> = 1.0 / 512;

inline double MaxMagnitude(const std::vector<double>& values) {
  double max = 0;
  for (double value : values) max = std::max(max, std::abs(value));
  return max;
}

// got against want, everywhere.
template <typename T>
void ExpectClose(const std::vector<T>& got, const std::vector<double>& want, double tolerance,
                 const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const double allowed = tolerance * MaxMagnitude(want) + 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(ToFloat(got[i]), want[i], allowed) << what << " at " << i;
  }
}

// got, a gradient, against central differences of an fp64 loss by elements of x: all of them where
// there are few, else every so many.
template <typename T, typename Loss>
void ExpectGradient(const std::vector<T>& got, std::vector<double> x, const Loss& loss,
                    double tolerance, const char* what, size_t samples = 64) {
  ASSERT_EQ(got.size(), x.size()) << what;
  double scale = 0;
  for (const T& value : got) scale = std::max<double>(scale, std::abs(ToFloat(value)));
  ASSERT_GT(scale, 0) << what << " is zero everywhere";
  const size_t stride = x.size() <= samples ? 1 : x.size() / samples | 1;
  constexpr double kStep = 1e-4;
  for (size_t i = 0; i < x.size(); i += stride) {
    const double before = x[i];
    x[i] = before + kStep;
    const double up = loss(x);
    x[i] = before - kStep;
    const double down = loss(x);
    x[i] = before;
    ASSERT_NEAR(ToFloat(got[i]), (up - down) / (2 * kStep), tolerance * scale + 1e-7)
        << what << " at " << i;
  }
}

inline double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_TESTING_H_
