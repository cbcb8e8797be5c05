#include "engine/ops/geglu/geglu_cuda_kernel-inl.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/geglu/geglu_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
class GeGluKernels : public testing::Test {};
using GeGluKernelsTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(GeGluKernels, GeGluKernelsTypes);

// Within the error of the CPU's fast exponential, or one rounding of a 16-bit result.
template <typename T>
void ExpectGeGluAlmost(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  const double relative = sizeof(T) == 4 ? 2e-6 : kTolerance<T> / 2;
  ExpectNear(got, want, relative, 1e-6, what);
}

template <typename T, int N>
void TestGeGlu(int64_t rows, int64_t width) {
  const auto values = RandomVector<T>(rows * 2 * width, 8, 2);
  const auto gradient = RandomVector<T>(rows * width, 9);
  HostArray<T> x(values), dy(gradient), y(rows * width);
  RunKernel(GatedForwardKernel<GeluGate, T, N>{x.data(), rows, width, y.data()});
  std::vector<T> want(rows * width);
  kernels::GeGluForward(values.data(), rows, width, want.data());
  ExpectGeGluAlmost(y.values(), want, "geglu");
  RunKernel(GatedBackwardKernel<GeluGate, T, N>{x.data(), dy.data(), rows, width, x.data()});
  want.resize(rows * 2 * width);
  kernels::GeGluBackward(values.data(), gradient.data(), rows, width, want.data());
  ExpectGeGluAlmost(x.values(), want, "geglu'");
}

TYPED_TEST(GeGluKernels, AreTheCpus) {
  TestGeGlu<TypeParam, 8>(3, 2056);
  TestGeGlu<TypeParam, 8>(5, 8);
  TestGeGlu<TypeParam, 1>(3, 259);
}

}  // namespace
}  // namespace milepost::kernels::cuda
