#include "engine/ops/compression/compression_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Compression : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Compression);

double RowDot(const std::vector<float>& rows, int64_t n, int64_t a, int64_t b) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{rows[a * n + i]} * rows[b * n + i];
  return sum;
}

void ExpectOrthonormal(const std::vector<float>& rows, int64_t count, int64_t n) {
  for (int64_t a = 0; a < count; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      ASSERT_NEAR(RowDot(rows, n, a, b), a == b ? 1 : 0, 1e-6) << a << ", " << b << " of " << count;
    }
  }
}

// Fails where it is called.
void NeverDrawn(int64_t row, float*) { ADD_FAILURE() << "row " << row << " is drawn"; }

TEST_P(Compression, RowsBecomeOrthonormal) {
  for (const auto& [count, n] :
       {std::pair<int64_t, int64_t>(1, 1), {1, 100}, {4, 4}, {7, 33}, {32, 1000}}) {
    auto rows = RandomVector<float>(count * n, 5);
    const auto before = rows;
    MakeOrthonormal(count, n, rows.data(), NeverDrawn);
    ExpectOrthonormal(rows, count, n);
    // Each row lies in the span of the new ones up to it.
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t e = 0; e < n; ++e) {
        double sum = 0;
        for (int64_t k = 0; k <= i; ++k) {
          double along = 0;
          for (int64_t j = 0; j < n; ++j) along += double{before[i * n + j]} * rows[k * n + j];
          sum += along * rows[k * n + e];
        }
        ASSERT_NEAR(sum, before[i * n + e], 2e-5) << i;
      }
    }
  }
}

// One pass alone leaves them far from orthogonal.
TEST_P(Compression, NearlyParallelRowsBecomeOrthonormal) {
  constexpr int64_t kCount = 5, kN = 200;
  const auto base = RandomVector<float>(kN, 6), rest = RandomVector<float>(kCount * kN, 7);
  std::vector<float> rows(kCount * kN);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = base[i % kN] + 1e-4F * rest[i];
  MakeOrthonormal(kCount, kN, rows.data(), NeverDrawn);
  ExpectOrthonormal(rows, kCount, kN);
}

TEST_P(Compression, WhatDependsOnEarlierRowsIsDrawnAnew) {
  constexpr int64_t kCount = 4, kN = 50;
  auto rows = RandomVector<float>(kCount * kN, 8);
  for (int64_t i = 0; i < kN; ++i) {
    rows[1 * kN + i] = 3 * rows[i];
    rows[2 * kN + i] = 0;
  }
  std::vector<int64_t> drawn;
  MakeOrthonormal(kCount, kN, rows.data(), [&](int64_t row, float* at) {
    drawn.push_back(row);
    const auto values = RandomVector<float>(kN, static_cast<uint32_t>(100 + row));
    std::copy(values.begin(), values.end(), at);
  });
  EXPECT_EQ(drawn, (std::vector<int64_t>{1, 2}));
  ExpectOrthonormal(rows, kCount, kN);
}

TEST_P(Compression, ARowThatIsNoNumberStaysThat) {
  constexpr int64_t kCount = 3, kN = 20;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto rows = RandomVector<float>(kCount * kN, 9);
    rows[1 * kN + 7] = bad;
    MakeOrthonormal(kCount, kN, rows.data(), NeverDrawn);
    EXPECT_FALSE(std::isfinite(rows[1 * kN + 7]));
  }
}

TEST_P(Compression, AddsOnEveryCpuTheSame) {
  for (const int64_t n : {1, 7, 64, 50003}) {
    const auto x = RandomVector<float>(n, 3), before = RandomVector<float>(n, 4);
    for (const float factor : {3.0F, -1.0F}) {
      auto sum = before;
      AddScaled(factor, x.data(), n, sum.data());
      for (int64_t i = 0; i < n; ++i) {
        const float product = factor * x[i];
        ASSERT_EQ(sum[i], before[i] + product) << i;
      }
    }
  }
}

}  // namespace
}  // namespace milepost::kernels
