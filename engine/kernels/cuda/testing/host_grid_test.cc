#include "engine/kernels/cuda/testing/host_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels::cuda {
namespace {

using testing::HasSubstr;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

// The sum of each block's 64 numbers, in two ways.
struct SumKernel {
  static constexpr int kThreads = 64;
  const float* x;
  float* sums;
  bool forgets_barrier = false;

  template <typename Context>
  void operator()(Context& c) const {
    const float value = c.Load(x + c.block() * kThreads + c.thread());
    auto parts = c.template Shared<float, kThreads, 0>();
    parts.Set(c.thread(), value);
    if (!forgets_barrier) c.Sync();
    float sum = 0;
    if (c.thread() == 0) {
      for (int i = 0; i < kThreads; ++i) sum += parts.Get(i);
    }
    c.Sync();
    const float other = BlockSum<kThreads, 1>(c, value);
    if (c.thread() == 0) {
      c.Store(sums + 2 * c.block(), sum);
      c.Store(sums + 2 * c.block() + 1, other);
    }
  }
};

TEST(HostGrid, SharedMemoryAndWarpsInAnyOrder) {
  std::vector<float> values(64 * 5);
  std::iota(values.begin(), values.end(), 1.0f);
  HostArray<float> x(values);
  for (uint64_t seed = 0; seed < 8; ++seed) {
    HostArray<float> sums(10);
    const absl::Status ran = RunOnHost(SumKernel{x.data(), sums.data()}, {.x = 5}, {.seed = seed});
    ASSERT_TRUE(ran.ok()) << ran;
    for (int block = 0; block < 5; ++block) {
      const float want = 64 * (64 * block + 32.5f);
      EXPECT_EQ(sums.values()[2 * block], want);
      EXPECT_EQ(sums.values()[2 * block + 1], want);
    }
  }
}

TEST(HostGrid, MissingBarrierIsARace) {
  HostArray<float> x(std::vector<float>(64, 1.0f)), sums(2);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const absl::Status ran = RunOnHost(SumKernel{x.data(), sums.data(), true}, {}, {.seed = seed});
    EXPECT_THAT(MessageOf(ran), HasSubstr("race on element"));
  }
}

// A product of tiles: [16, 16] by [16, 8].
struct TilesKernel {
  static constexpr int kThreads = 32;
  const bf16* a;
  const bf16* b;
  float* out;

  template <typename Context>
  void operator()(Context& c) const {
    const int g = c.lane() / 4, t = c.lane() % 4;
    const auto pair = [&](const bf16* at, int apart) {
      return c.Load(at).bits | static_cast<uint32_t>(c.Load(at + apart).bits) << 16;
    };
    const bf16* row = a + g * 16 + 2 * t;
    const bf16* column = b + 2 * t * 8 + g;
    const uint32_t words[4] = {pair(row, 1), pair(row + 8 * 16, 1), pair(row + 8, 1),
                               pair(row + 8 * 16 + 8, 1)};
    float sums[4] = {1, 1, 1, 1};
    c.template MultiplyTiles<bf16>(words, {pair(column, 8), pair(column + 8 * 8, 8)}, sums);
    for (int i = 0; i < 4; ++i) c.Store(out + (g + i / 2 * 8) * 8 + 2 * t + i % 2, sums[i]);
  }
};

TEST(HostGrid, TilesOfAWarpAreMultiplied) {
  const auto a_values = RandomVector<bf16>(16 * 16, 1), b_values = RandomVector<bf16>(16 * 8, 2);
  HostArray<bf16> a(a_values), b(b_values);
  HostArray<float> out(16 * 8);
  const absl::Status ran = RunOnHost(TilesKernel{a.data(), b.data(), out.data()}, {}, {.seed = 3});
  ASSERT_TRUE(ran.ok()) << ran;
  for (int i = 0; i < 16 * 8; ++i) {
    double want = 1;
    for (int k = 0; k < 16; ++k) {
      want += double{ToFloat(a_values[i / 8 * 16 + k])} * ToFloat(b_values[k * 8 + i % 8]);
    }
    EXPECT_NEAR(out.values()[i], want, 1e-6) << i;
  }
}

struct DivergentKernel {
  static constexpr int kThreads = 64;
  enum { kEarlyReturn, kTwoBarriers, kHalfAWarp } what;

  template <typename Context>
  void operator()(Context& c) const {
    if (what == kEarlyReturn && c.thread() == 40) return;
    if (what == kTwoBarriers && c.thread() < 32) {
      c.Sync();
      return;
    }
    if (what == kHalfAWarp && c.lane() < 16) return;
    if (what == kHalfAWarp) c.ShuffleXor(1, 1);
    c.Sync();
  }
};

TEST(HostGrid, BarriersThatNotAllReach) {
  EXPECT_THAT(MessageOf(RunOnHost(DivergentKernel{DivergentKernel::kEarlyReturn}, {})),
              HasSubstr("thread 40 has ended"));
  EXPECT_THAT(MessageOf(RunOnHost(DivergentKernel{DivergentKernel::kTwoBarriers}, {})),
              HasSubstr("wait for each other"));
  EXPECT_THAT(MessageOf(RunOnHost(DivergentKernel{DivergentKernel::kHalfAWarp}, {})),
              HasSubstr("threads that do not come"));
}

// One access of the second thread.
template <typename Touch>
struct TouchKernel {
  static constexpr int kThreads = 32;
  Touch touch;
  template <typename Context>
  void operator()(Context& c) const {
    if (c.thread() == 1) touch(c);
  }
};
template <typename Touch>
std::string Touched(Touch touch) {
  return MessageOf(RunOnHost(TouchKernel<Touch>{touch}, {}));
}

TEST(HostGrid, AccessesOutOfBounds) {
  HostArray<float> x(std::vector<float>(7, 1.0f));
  EXPECT_EQ(Touched([&](auto& c) { c.Load(x.data() + 6); }), "");
  EXPECT_THAT(Touched([&](auto& c) { c.Load(x.data() + 7); }), HasSubstr("out of bounds"));
  EXPECT_THAT(Touched([&](auto& c) { c.Store(x.data() - 1, 0.0f); }), HasSubstr("out of bounds"));
  using Four = Pack<float, 4>;
  EXPECT_THAT(Touched([&](auto& c) { c.Load(reinterpret_cast<Four*>(x.data() + 4)); }),
              HasSubstr("out of bounds: bytes 16 to 32 of 28"));
  EXPECT_THAT(Touched([&](auto& c) { c.Load(reinterpret_cast<Four*>(x.data() + 2)); }),
              HasSubstr("misaligned"));
  EXPECT_THAT(Touched([&](auto& c) { c.template Shared<float, 8, 0>().Set(8, 0.0f); }),
              HasSubstr("shared memory out of bounds: element 8 of 8"));
  EXPECT_THAT(Touched([&](auto& c) { c.template DynamicShared<float>().Get(0); }),
              HasSubstr("out of bounds"));
}

// Every block writes the same element.
struct CollidingKernel {
  static constexpr int kThreads = 32;
  float* out;
  template <typename Context>
  void operator()(Context& c) const {
    if (c.thread() == 0) c.Store(out, 1.0f);
  }
};

TEST(HostGrid, BlocksAreNeverInOrder) {
  HostArray<float> out(1);
  EXPECT_TRUE(RunOnHost(CollidingKernel{out.data()}, {.x = 1}).ok());
  EXPECT_TRUE(RunOnHost(CollidingKernel{out.data()}, {.x = 1}).ok());
  EXPECT_THAT(MessageOf(RunOnHost(CollidingKernel{out.data()}, {.x = 2})), HasSubstr("race"));
}

}  // namespace
}  // namespace milepost::kernels::cuda
