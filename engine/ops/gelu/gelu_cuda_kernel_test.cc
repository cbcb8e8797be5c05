#include "engine/ops/gelu/gelu_cuda_kernel-inl.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/gelu/gelu_erf_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
class GeluKernels : public testing::Test {};
using GeluKernelsTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(GeluKernels, GeluKernelsTypes);

constexpr int64_t kGeluSizes[] = {1, 7, 8, 2049, 5003};

// Within the error of the CPU's fast exponential, or one rounding of a 16-bit result.
template <typename T>
void ExpectGeluAlmost(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  const double relative = sizeof(T) == 4 ? 2e-6 : kTolerance<T> / 2;
  ExpectNear(got, want, relative, 1e-6, what);
}

template <typename T, typename Fn, typename Cpu>
void TestGelu(const Cpu& cpu, const char* what) {
  for (const int64_t n : kGeluSizes) {
    const auto values = RandomVector<T>(n, 5, 3);
    HostArray<T> x(values);
    RunKernel(MapKernel<Fn, T, T>{{}, x.data(), n, x.data()});
    std::vector<T> want(n);
    cpu(values.data(), n, want.data());
    ExpectGeluAlmost(x.values(), want, what);
  }
}
template <typename T, typename Fn, typename Cpu>
void TestGeluBackward(const Cpu& cpu, const char* what) {
  for (const int64_t n : kGeluSizes) {
    const auto values = RandomVector<T>(n, 6, 3), gradient = RandomVector<T>(n, 7);
    HostArray<T> x(values), dy(gradient);
    RunKernel(PairKernel<Fn, T>{{}, x.data(), dy.data(), n, dy.data()});
    std::vector<T> want(n);
    cpu(values.data(), gradient.data(), n, want.data());
    ExpectGeluAlmost(dy.values(), want, what);
  }
}

TYPED_TEST(GeluKernels, AreTheCpus) {
  using T = TypeParam;
  TestGelu<T, GeluFn>(&kernels::GeluForward<T>, "gelu");
  TestGeluBackward<T, GeluBackwardFn>(&kernels::GeluBackward<T>, "gelu'");
  TestGelu<T, GeluErfFn>(&kernels::GeluErfForward<T>, "gelu, erf");
  TestGeluBackward<T, GeluErfBackwardFn>(&kernels::GeluErfBackward<T>, "gelu', erf");
}

// Every bf16 number that is finite, against the definition in fp64: also far out, where Phi is
// small.
TEST(GeluErfKernel, EveryNumber) {
  std::vector<bf16> every;
  for (int i = 0; i < 1 << 16; ++i) {
    const bf16 x = {static_cast<uint16_t>(i)};
    if (std::isfinite(ToFloat(x))) every.push_back(x);
  }
  const auto count = static_cast<int64_t>(every.size());
  HostArray<bf16> x(every);
  HostArray<float> y(count);
  RunKernel(MapKernel<GeluErfFn, bf16, float>{{}, x.data(), count, y.data()});
  HostArray<bf16> dy(std::vector<bf16>(every.size(), ToBf16(1)));
  RunKernel(PairKernel<GeluErfBackwardFn, bf16>{{}, x.data(), dy.data(), count, dy.data()});
  for (int64_t i = 0; i < count; ++i) {
    const double v = ToFloat(every[i]);
    const double phi = 0.5 * std::erfc(-v / std::sqrt(2.0));
    const double bell = std::exp(-v * v / 2) / std::sqrt(2 * std::acos(-1.0));
    // fp32 squares x before it takes the exponential: x^2 / 2 half units off.
    const double off = 2e-6 + v * v * 6e-8;
    EXPECT_NEAR(y.data()[i], v * phi, std::abs(v * phi) * off + 1e-37) << v;
    // Where the two summands cancel their roundings stay.
    EXPECT_NEAR(ToFloat(dy.data()[i]), phi + v * bell,
                std::abs(phi + v * bell) / 256 + (phi + std::abs(v * bell)) * off + 1e-37)
        << v;
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
