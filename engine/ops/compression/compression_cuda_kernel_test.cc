#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/compression/compression_cpu_kernel.h"
#include "engine/ops/compression/compression_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 11;
constexpr uint64_t kStepNow = 6;

struct FactorCase {
  int64_t count;
  int64_t n;
  std::vector<float> rows;
};

uint64_t FactorStreamOf(size_t index) { return 40 + index; }

// On the device, all in one launch.
std::vector<std::vector<float>> Orthonormalised(const std::vector<FactorCase>& cases) {
  std::deque<HostArray<float>> arrays;
  for (const FactorCase& c : cases) arrays.emplace_back(c.rows);
  std::vector<FactorRows> table;
  for (size_t i = 0; i < cases.size(); ++i) {
    table.push_back({.rows = arrays[i].data(),
                     .n = cases[i].n,
                     .count = cases[i].count,
                     .key = PhiloxKey(kSeed, FactorStreamOf(i))});
  }
  HostArray<FactorRows> matrices(table);
  HostArray<StepPosition> position(std::vector<StepPosition>{{.step = kStepNow}});
  RunKernel(
      OrthonormalKernel{matrices.data(), static_cast<int64_t>(table.size()), position.data()});
  std::vector<std::vector<float>> results;
  for (HostArray<float>& array : arrays) results.push_back(array.values());
  return results;
}

std::vector<float> OrthonormalisedOnTheCpu(const FactorCase& c, size_t index) {
  std::vector<float> rows = c.rows;
  kernels::MakeOrthonormal(c.count, c.n, rows.data(), [&](int64_t row, float* at) {
    kernels::NormalInit(at, c.n, 0, 1, kSeed, FactorStreamOf(index),
                        (kStepNow * static_cast<uint64_t>(c.count) + static_cast<uint64_t>(row)) *
                            static_cast<uint64_t>(c.n));
  });
  return rows;
}

void ExpectOrthonormalInFp64(const std::vector<float>& rows, int64_t count, int64_t n) {
  for (int64_t a = 0; a < count; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += double{rows[a * n + i]} * rows[b * n + i];
      ASSERT_NEAR(sum, a == b ? 1 : 0, 1e-6) << a << ", " << b << " of " << count << " x " << n;
    }
  }
}

// Also shorter than a block, and no multiple of anything.
std::vector<FactorCase> RandomFactors() {
  std::vector<FactorCase> cases;
  for (const auto& [count, n] :
       {std::pair<int64_t, int64_t>(1, 1), {1, 3001}, {3, 3}, {4, 1024}, {7, 1033}, {32, 500}}) {
    cases.push_back({count, n, RandomVector<float>(count * n, static_cast<uint32_t>(n))});
  }
  return cases;
}

void ExpectOrthonormalAsOnTheCpu(const std::vector<FactorCase>& cases) {
  const auto results = Orthonormalised(cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    ExpectOrthonormalInFp64(results[i], cases[i].count, cases[i].n);
    ExpectNear(results[i], OrthonormalisedOnTheCpu(cases[i], i), 1e-5, 1e-6, "rows");
  }
}

TEST(CompressionCudaKernel, RowsBecomeOrthonormalAsOnTheCpu) {
  ExpectOrthonormalAsOnTheCpu(RandomFactors());
}

TEST(CompressionCudaKernel, NearlyParallelRowsBecomeOrthonormal) {
  constexpr int64_t kCount = 5, kN = 200;
  const auto base = RandomVector<float>(kN, 6), rest = RandomVector<float>(kCount * kN, 7);
  FactorCase c{kCount, kN, std::vector<float>(kCount * kN)};
  for (size_t i = 0; i < c.rows.size(); ++i) c.rows[i] = base[i % kN] + 1e-4F * rest[i];
  ExpectOrthonormalInFp64(Orthonormalised({c})[0], kCount, kN);
}

// Of a matrix of zeros all rows; a row alone that is drawn has the CPU's numbers.
TEST(CompressionCudaKernel, WhatDependsOnEarlierRowsIsDrawnAsOnTheCpu) {
  std::vector<FactorCase> cases = RandomFactors();
  for (size_t i = 0; i < cases.size(); ++i) {
    FactorCase& c = cases[i];
    if (i % 2 == 1) {
      std::fill(c.rows.begin(), c.rows.end(), 0.0F);
    } else if (c.count > 1) {
      for (int64_t e = 0; e < c.n; ++e) c.rows[c.n + e] = -2 * c.rows[e];
    }
  }
  ExpectOrthonormalAsOnTheCpu(cases);
}

TEST(CompressionCudaKernel, ARowThatIsNoNumberStaysThat) {
  constexpr int64_t kCount = 3, kN = 1500;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    FactorCase c{kCount, kN, RandomVector<float>(kCount * kN, 9)};
    c.rows[1 * kN + 7] = bad;
    EXPECT_FALSE(std::isfinite(Orthonormalised({c})[0][1 * kN + 7]));
  }
}

TEST(CompressionCudaKernel, AddsAsTheCpu) {
  for (const int64_t n : {1, 7, 64, 5003}) {
    const auto x = RandomVector<float>(n, 3);
    std::vector<float> want = RandomVector<float>(n, 4);
    HostArray<float> from(x), out(want);
    kernels::AddScaled(3, x.data(), n, want.data());
    RunKernel(PairKernel<AddScaledFn, float>{{3}, out.data(), from.data(), n, out.data()});
    EXPECT_TRUE(SameBits(out.values(), want)) << n;
  }
}

TEST(CompressionCudaKernel, CopiesTensorsOfAllSizes) {
  const int64_t sizes[] = {1, 3, 256, 2049, 7000};
  std::deque<HostArray<float>> from, to;
  std::vector<CopiedTensor> table;
  for (const int64_t n : sizes) {
    from.emplace_back(RandomVector<float>(n, static_cast<uint32_t>(n)));
    to.emplace_back(std::vector<float>(static_cast<size_t>(n + 1), -1.0F));
  }
  for (size_t i = 0; i < from.size(); ++i) {  // to where no pack begins
    table.push_back({from[i].data(), to[i].data() + 1, sizes[i]});
  }
  HostArray<CopiedTensor> tensors(table);
  RunKernel(CopyTensorsKernel{tensors.data(), static_cast<int64_t>(table.size()), 7000});
  for (size_t i = 0; i < from.size(); ++i) {
    std::vector<float> want = from[i].values();
    want.insert(want.begin(), -1.0F);
    EXPECT_TRUE(SameBits(to[i].values(), want)) << sizes[i];
  }
}

TEST(CompressionCudaKernel, ZeroesWhereTheStepIsSkippedAlone) {
  for (const int64_t n : {1, 1030}) {
    for (const uint32_t skip : {0U, 1U}) {
      const auto before = RandomVector<float>(n, 3);
      HostArray<float> x(before);
      HostArray<UpdateControl> control(std::vector<UpdateControl>{{1, skip}});
      RunKernel(ZeroIfSkippedKernel{control.data(), n, x.data()});
      EXPECT_TRUE(SameBits(x.values(), skip == 0 ? before : std::vector<float>(before.size())));
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
