#include "engine/kernels/cuda/initial_values_kernels.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
class InitialValueKernels : public testing::Test {};
using InitialTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(InitialValueKernels, InitialTypes);

constexpr uint64_t kSeed = 42, kStream = 7;

// `offset`: elements of `out` that are not written, so that it is aligned or not.
template <typename T, typename Numbers>
void ExpectDrawn(const Numbers& numbers, const std::vector<float>& want, uint64_t first,
                 int64_t offset) {
  const auto n = static_cast<int64_t>(want.size());
  std::vector<T> values(want.size() + offset, FromFloat<T>(99.0f));
  HostArray<T> out(values);
  RunKernel(
      DrawKernel<Numbers, T>{numbers, out.data() + offset, n, PhiloxKey(kSeed, kStream), first});
  for (int64_t i = 0; i < n; ++i) values[offset + i] = FromFloat<T>(want[i]);
  EXPECT_TRUE(SameBits(out.values(), values)) << n << " from " << first << " at " << offset;
}

TYPED_TEST(InitialValueKernels, AreTheCpus) {
  for (const int64_t n : {1, 7, 64, 2049, 5003}) {
    for (const uint64_t first : {uint64_t{0}, uint64_t{5}, uint64_t{24}, uint64_t{1} << 38}) {
      for (const int64_t offset : {0, 1, 8}) {
        std::vector<float> normal(n), uniform(n);
        NormalInit(normal.data(), n, 0.0f, 0.02f, kSeed, kStream, first);
        UniformInit(uniform.data(), n, 0.1f, kSeed, kStream, first);
        ExpectDrawn<TypeParam>(NormalNumbers{0.02f}, normal, first, offset);
        ExpectDrawn<TypeParam>(UniformNumbers{0.1f}, uniform, first, offset);
        ExpectDrawn<TypeParam>(ConstantNumbers{1.0f}, std::vector<float>(n, 1.0f), first, offset);
      }
    }
  }
}

// The ends of both words' ranges, and of the quarters of a turn; and that the largest word, of
// which the radius is 0, gives no negative zero.
TEST(NormalPairs, EndsOfTheRanges) {
  for (const uint32_t word : {0u, 255u, 256u, 0x7fffffffu, 0x80000000u, 0xb504f333u, 0xffffffffu}) {
    for (uint32_t quarter = 0; quarter < 8; ++quarter) {
      for (const uint32_t off : {0u, 0xffffff00u, 0x100u}) {
        const uint32_t turn = (quarter << 29) + off;
        const NormalPair got = NormalPairOf(word, turn);
        const double u = ((word >> 8) + 1) * 0x1p-24, v = ((turn >> 8) + 1) * 0x1p-24;
        const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * M_PI * v;
        // cos(pi / 2) is not 0 in fp64.
        EXPECT_NEAR(got.cosine, radius * std::cos(angle), 5e-7 * std::abs(got.cosine) + 1e-14);
        EXPECT_NEAR(got.sine, radius * std::sin(angle), 5e-7 * std::abs(got.sine) + 1e-14);
      }
    }
  }
  EXPECT_FALSE(std::signbit(NormalNumbers{0.5f}.Scaled(-0.0f)));
}

}  // namespace
}  // namespace milepost::kernels::cuda
