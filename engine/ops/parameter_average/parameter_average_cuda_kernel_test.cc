#include "engine/ops/parameter_average/parameter_average_cuda_kernel-inl.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/parameter_average/parameter_average_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr int64_t kAverageSizes[] = {1, 7, 8, 2049, 5003};

template <typename T>
void ExpectTheCpusAverages(int64_t n, bool skip) {
  const auto values = RandomVector<T>(n, 3);
  std::vector<float> want = RandomVector<float>(n, 4);
  HostArray<T> parameters(values);
  HostArray<float> averages(want), weight(std::vector<float>{0.3F});
  HostArray<UpdateControl> control(std::vector<UpdateControl>{{1.0F, skip ? 1U : 0U}});
  RunKernel(AverageKernel<T>{parameters.data(), n, weight.data(), control.data(), averages.data()});
  if (!skip) kernels::AddToAverages(values.data(), n, 0.3F, want.data());
  EXPECT_EQ(averages.values(), want) << n;
}

TEST(ParameterAverageKernel, HasTheCpusBits) {
  for (const int64_t n : kAverageSizes) {
    for (const bool skip : {false, true}) {
      ExpectTheCpusAverages<float>(n, skip);
      ExpectTheCpusAverages<bf16>(n, skip);
    }
  }
}

TEST(ParameterAverageKernel, Swaps) {
  for (const int64_t n : kAverageSizes) {
    const auto parameters = RandomVector<float>(n, 3), averages = RandomVector<float>(n, 4);
    HostArray<float> p(parameters), a(averages);
    RunKernel(SwapAveragesKernel{n, p.data(), a.data()});
    EXPECT_TRUE(p.values() == averages && a.values() == parameters) << n;
  }
}

std::vector<uint32_t> BitsOfFloats(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}
std::vector<uint16_t> BitsOfHalves(const std::vector<bf16>& values) {
  std::vector<uint16_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(bf16));
  return bits;
}

TEST(ParameterAverageKernel, ExchangesBits) {
  for (const int64_t n : kAverageSizes) {
    const auto parameters = RandomVector<bf16>(n, 3);
    const auto averages = RandomVector<float>(n, 4);
    std::vector<bf16> want_p = parameters;
    std::vector<float> want_a = averages;
    kernels::TakeAverages(n, want_p.data(), want_a.data());
    HostArray<bf16> p(parameters);
    HostArray<uint32_t> a(BitsOfFloats(averages));
    RunKernel(ExchangeBitsKernel<false>{n, p.data(), a.data()});
    EXPECT_EQ(BitsOfHalves(p.values()), BitsOfHalves(want_p));
    EXPECT_EQ(a.values(), BitsOfFloats(want_a));
    RunKernel(ExchangeBitsKernel<true>{n, p.data(), a.data()});
    EXPECT_EQ(BitsOfHalves(p.values()), BitsOfHalves(parameters));
    EXPECT_EQ(a.values(), BitsOfFloats(averages));
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
