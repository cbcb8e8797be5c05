#include "engine/ops/parameter_average/parameter_average_cpu_kernel.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/ops/parameter_average/parameter_average_contract.h"

namespace milepost::kernels {
namespace {

class ParameterAverage : public OnEveryTarget {};
MP_ON_EVERY_TARGET(ParameterAverage);

template <typename T>
void ExpectTheFormula(int64_t n, float weight) {
  const auto parameters = RandomVector<T>(n, 3);
  const auto before = RandomVector<float>(n, 4);
  std::vector<float> averages = before;
  AddToAverages(parameters.data(), n, weight, averages.data());
  for (int64_t i = 0; i < n; ++i) {
    const double old = before[i], now = ToFloat(parameters[i]);
    const double want = (1 - double{weight}) * old + double{weight} * now;
    // Three roundings, of numbers no larger than these.
    ASSERT_NEAR(averages[i], want, 2e-7 * (std::abs(old) + std::abs(now))) << i;
    // On every CPU these.
    const float product = weight * (ToFloat(parameters[i]) - before[i]);
    ASSERT_EQ(averages[i], before[i] + product) << i;
  }
}

TEST_P(ParameterAverage, IsTheFormulaInFp64) {
  for (const int64_t n : {1, 7, 64, 50003}) {
    for (const float weight : {1.0F, 0.1F, 1e-4F}) {
      ExpectTheFormula<float>(n, weight);
      ExpectTheFormula<bf16>(n, weight);
    }
  }
}

TEST_P(ParameterAverage, DoesNotDependOnThreads) {
  constexpr int64_t kCount = 100003;
  const auto parameters = RandomVector<float>(kCount, 3);
  std::vector<float> one = RandomVector<float>(kCount, 4), four = one;
  {
    const ThreadCount threads(1);
    AddToAverages(parameters.data(), kCount, 0.3F, one.data());
  }
  const ThreadCount threads(4);
  AddToAverages(parameters.data(), kCount, 0.3F, four.data());
  EXPECT_EQ(one, four);
}

TEST_P(ParameterAverage, SwapsAndSwapsBack) {
  constexpr int64_t kCount = 40001;
  const auto parameters = RandomVector<float>(kCount, 3), averages = RandomVector<float>(kCount, 4);
  std::vector<float> p = parameters, a = averages;
  SwapAverages(kCount, p.data(), a.data());
  EXPECT_TRUE(p == averages && a == parameters);
  SwapAverages(kCount, p.data(), a.data());
  EXPECT_TRUE(p == parameters && a == averages);
}

// Whatever the bits are: numbers, infinities, those that are none.
TEST(ExchangedBits, NothingIsLost) {
  for (uint32_t upper = 0; upper < 1U << 16; ++upper) {
    for (const uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const uint32_t average = upper << 16 | lower;
      const auto parameter = static_cast<uint16_t>(upper * 40503U + lower);
      const ExchangedBits taken = TakeAverage(parameter, average);
      const ExchangedBits back = ReturnParameter(taken.parameter, taken.average);
      ASSERT_EQ(back.parameter, parameter);
      ASSERT_EQ(back.average, average);
      const float value = std::bit_cast<float>(average);
      if (!std::isfinite(value)) continue;
      // To the nearest: of ties either is.
      if (lower == 0x8000U) {
        ASSERT_EQ(taken.parameter, upper);
      } else {
        ASSERT_EQ(taken.parameter, ToBf16(value).bits) << value;
      }
    }
  }
}

TEST(ExchangedBits, OfWholeBuffers) {
  constexpr int64_t kCount = 40001;
  const auto parameters = RandomVector<bf16>(kCount, 3);
  const auto averages = RandomVector<float>(kCount, 4);
  std::vector<bf16> p = parameters;
  std::vector<float> a = averages;
  TakeAverages(kCount, p.data(), a.data());
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(ToFloat(p[i]), averages[i], std::abs(averages[i]) / 256);
  }
  ReturnParameters(kCount, p.data(), a.data());
  EXPECT_EQ(std::memcmp(p.data(), parameters.data(), kCount * sizeof(bf16)), 0);
  EXPECT_EQ(a, averages);
}

}  // namespace
}  // namespace milepost::kernels
