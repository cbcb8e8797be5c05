#include "engine/ops/dropout/dropout_cpu_kernel.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class DropoutAlone : public OnEveryTarget {};
MP_ON_EVERY_TARGET(DropoutAlone);

template <typename T>
void Check(int64_t n) {
  const DropoutParams params{.p = 0.3f, .seed = 4, .stream = 5, .step = 6, .first_element = 96};
  const auto x = RandomVector<T>(n, 1);
  std::vector<float> keep(n);
  DropoutMultipliers(params, 0, n, keep.data());
  for (int threads : {1, 3}) {
    const ThreadCount scope(threads);
    std::vector<T> y = x;
    Dropout(y.data(), n, params, y.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(ToFloat(y[i]), ToFloat(FromFloat<T>(ToFloat(x[i]) * keep[i]))) << i;
    }
  }
}

TEST_P(DropoutAlone, MultipliesByTheMask) {
  for (int64_t n : {1, 63, 300, 20000}) {
    Check<float>(n);
    Check<bf16>(n);
  }
}

// A rank that has a part of each sample has that part of the samples' masks.
TEST_P(DropoutAlone, PartsHaveTheMaskOfTheWhole) {
  constexpr int64_t kSample = 700, kBegin = 90, kOwn = 333, kSamples = 3;
  const DropoutParams whole{.p = 0.3f, .seed = 4, .stream = 5, .step = 6, .first_element = 96};
  std::vector<float> keep(kSamples * kSample);
  DropoutMultipliers(whole, 0, kSamples * kSample, keep.data());
  DropoutParams part = whole;
  part.first_element += kBegin;
  part.run = kOwn;
  part.gap = kSample - kOwn;
  const std::vector<float> ones(kSamples * kOwn, 1.0f);
  std::vector<float> y(ones.size());
  Dropout(ones.data(), kSamples * kOwn, part, y.data());
  for (int64_t i = 0; i < kSamples * kOwn; ++i) {
    ASSERT_EQ(y[i], keep[i / kOwn * kSample + kBegin + i % kOwn]) << i;
  }
}

}  // namespace
}  // namespace milepost::kernels
