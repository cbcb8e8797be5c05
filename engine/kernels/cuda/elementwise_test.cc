#include "engine/kernels/cuda/elementwise_kernels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/dropout/dropout_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
class ElementwiseKernels : public testing::Test {};
using Types = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(ElementwiseKernels, Types);

constexpr int64_t kSizes[] = {1, 7, 8, 2049, 5003};

// fp32 exactly as the CPU has it where no transcendental function is in it; else within the error
// of its fast one, or one rounding of a 16-bit result.
template <typename T>
void ExpectAlmost(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  const double relative = sizeof(T) == 4 ? 2e-6 : kTolerance<T> / 2;
  ExpectNear(got, want, relative, 1e-6, what);
}

template <typename From, typename To>
void TestCast(const std::vector<From>& values) {
  HostArray<From> in(values);
  HostArray<To> out(in.size());
  RunKernel(MapKernel<SameFn, From, To>{{}, in.data(), in.size(), out.data()});
  std::vector<To> want(values.size());
  for (size_t i = 0; i < want.size(); ++i) want[i] = FromFloat<To>(ToFloat(values[i]));
  EXPECT_TRUE(SameBits(out.values(), want));
}

TYPED_TEST(ElementwiseKernels, CastsBothWays) {
  for (const int64_t n : kSizes) {
    TestCast<float, TypeParam>(RandomVector<float>(n, 1, 100));
    TestCast<TypeParam, float>(RandomVector<TypeParam>(n, 2));
  }
  TestCast<float, TypeParam>({0.0f, -0.0f, INFINITY, -INFINITY, 1e-7f, 70000.0f, 1.00390625f});
}

TYPED_TEST(ElementwiseKernels, AddInPlace) {
  using T = TypeParam;
  for (const int64_t n : kSizes) {
    const auto a = RandomVector<T>(n, 3), b = RandomVector<T>(n, 4);
    HostArray<T> x(a), y(b);
    RunKernel(PairKernel<AddFn, T>{{}, x.data(), y.data(), n, y.data()});
    std::vector<T> want(n);
    kernels::Add(a.data(), b.data(), n, want.data());
    EXPECT_TRUE(SameBits(y.values(), want));
  }
}

TYPED_TEST(ElementwiseKernels, AccumulatesIntoFp32) {
  using T = TypeParam;
  for (const int64_t n : kSizes) {
    const auto values = RandomVector<T>(n, 5);
    std::vector<float> want = RandomVector<float>(n, 6);
    HostArray<T> x(values);
    HostArray<float> out(want);
    RunKernel(PairKernel<AddFn, float, T>{{}, out.data(), x.data(), n, out.data()});
    for (int64_t i = 0; i < n; ++i) want[i] += ToFloat(values[i]);
    EXPECT_TRUE(SameBits(out.values(), want));
  }
}

TEST(FloatKernels, FillAndScale) {
  for (const int64_t n : kSizes) {
    HostArray<float> x(n);
    RunKernel(FillKernel{x.data(), n, 3.0f});
    RunKernel(MapKernel<ScaleFn, float, float>{{0.5f}, x.data(), n, x.data()});
    EXPECT_EQ(x.values(), std::vector<float>(n, 1.5f));
  }
}

// The CPU's masks, whatever the alignment of the first element, in place.
TYPED_TEST(ElementwiseKernels, Dropout) {
  using T = TypeParam;
  for (const int64_t n : kSizes) {
    for (const uint64_t first_sample : {0, 3, 5}) {
      for (const uint64_t each : {64, 24, 7}) {
        const auto values = RandomVector<T>(n, 10);
        const DropoutParams cpu = {.p = 0.3f,
                                   .seed = 42,
                                   .stream = 7,
                                   .step = uint64_t{1} << 33,
                                   .first_element = first_sample * each};
        std::vector<T> want(n);
        kernels::Dropout(values.data(), n, cpu, want.data());
        HostArray<StepPosition> position(std::vector<StepPosition>{{cpu.step, first_sample}});
        HostArray<T> x(values);
        RunKernel(DropoutKernel<T>{
            x.data(), n, MaskOf({cpu.p, cpu.seed, cpu.stream, position.data(), each}), x.data()});
        ASSERT_TRUE(SameBits(x.values(), want)) << n << " from " << cpu.first_element;
      }
    }
  }
}

// A rank that has a part of each of three samples.
TYPED_TEST(ElementwiseKernels, DropoutOfParts) {
  using T = TypeParam;
  for (const uint64_t own : {64, 24, 700, 7}) {
    for (const uint64_t begin : {0, 128, 8, 5}) {
      const uint64_t each = own + begin + 3;
      const auto n = static_cast<int64_t>(3 * own);
      const auto values = RandomVector<T>(n, 10);
      const DropoutParams cpu = {.p = 0.3f,
                                 .seed = 42,
                                 .stream = 7,
                                 .step = 6,
                                 .first_element = 2 * each + begin,
                                 .run = own,
                                 .gap = each - own};
      std::vector<T> want(n);
      kernels::Dropout(values.data(), n, cpu, want.data());
      HostArray<StepPosition> position(std::vector<StepPosition>{{6, 2}});
      HostArray<T> x(values);
      const DropoutArgs args = {cpu.p, cpu.seed, cpu.stream, position.data(), each, begin, own};
      RunKernel(DropoutKernel<T>{x.data(), n, MaskOf(args), x.data()});
      ASSERT_TRUE(SameBits(x.values(), want)) << own << " from " << begin;
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
