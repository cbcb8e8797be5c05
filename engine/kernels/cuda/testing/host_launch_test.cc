#include "engine/kernels/cuda/testing/host_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/ops/attention/attention_cuda_kernel.h"

namespace milepost::kernels::cuda {
namespace {

using ::testing::HasSubstr;

// Sums of blocks of 256, by warps and over the block, and who was seen.
struct BlockSumKernel {
  static constexpr int kThreads = 256;
  const float* x;
  float* sums;
  int* seen;

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block_y() * c.blocks() * kThreads + c.block() * kThreads + c.thread();
    const float first = BlockSum<kThreads, 0>(c, c.Load(x + i));
    const float again = BlockSum<kThreads, 1>(c, c.Load(x + i));
    c.Store(seen + i, static_cast<int>(first == again));
    if (c.thread() == 0) c.Store(sums + c.block_y() * c.blocks() + c.block(), first);
  }
};

void SumBlocks() {
  std::vector<float> x(6 * 256), sums(6);
  std::vector<int> seen(x.size());
  std::iota(x.begin(), x.end(), 0.0F);
  ASSERT_EQ(Launch(BlockSumKernel{x.data(), sums.data(), seen.data()}, {.x = 3, .y = 2}, nullptr,
                   "BlockSum"),
            absl::OkStatus());
  for (size_t block = 0; block < sums.size(); ++block) {
    EXPECT_EQ(sums[block], 256.0F * 256.0F * static_cast<float>(block) + 255 * 128) << block;
  }
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 6 * 256);
}

TEST(HostLaunch, RunsBlocksThatSynchronise) { SumBlocks(); }

TEST(HostLaunch, SeveralThreadsMayLaunch) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(SumBlocks);
  for (std::thread& thread : threads) thread.join();
}

struct WrongKernel {
  static constexpr int kThreads = 64;
  enum { kEarlyReturn, kHalfAWarp, kMisaligned, kOutOfShared, kTooMuchShared } what;
  float* x;

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    if (what == kEarlyReturn && c.thread() == 40) return;
    if (what == kHalfAWarp && c.lane() < 16) return;
    if (what == kHalfAWarp) c.ShuffleXor(1, 1);
    if (what == kMisaligned && c.thread() == 3) c.Load(reinterpret_cast<Pack<float, 4>*>(x + 1));
    if (what == kOutOfShared) c.template Shared<float, 8, 0>().Set(8, 0.0f);
    if (what == kTooMuchShared) c.template Shared<float, 100000, 0>();
    c.Sync();
  }
};

std::string MessageOf(const WrongKernel& kernel, const Grid& grid = {}) {
  return std::string(Launch(kernel, grid, nullptr, "Wrong").message());
}

TEST(HostLaunch, SaysWhatADeviceWouldNotRun) {
  std::vector<Pack<float, 4>> memory(4);
  float* x = memory[0].v;
  EXPECT_THAT(MessageOf({WrongKernel::kEarlyReturn, x}),
              HasSubstr("thread 40: does not come to a barrier"));
  EXPECT_THAT(MessageOf({WrongKernel::kHalfAWarp, x}), HasSubstr("does not come"));
  EXPECT_THAT(MessageOf({WrongKernel::kMisaligned, x}), HasSubstr("misaligned"));
  EXPECT_THAT(MessageOf({WrongKernel::kOutOfShared, x}), HasSubstr("out of bounds"));
  EXPECT_THAT(MessageOf({WrongKernel::kTooMuchShared, x}), HasSubstr("more shared memory"));
  EXPECT_THAT(MessageOf({WrongKernel::kMisaligned, x}, {.y = 65536}), HasSubstr("no device runs"));
  // After all that, the next launch is as good as ever.
  SumBlocks();
}

TEST(HostLaunch, RunsTheKernelsThemselves) {
  const std::vector<float> x = RandomVector<float>(1003, 5);
  std::vector<float> y(x.size());
  ASSERT_EQ(Add(x.data(), x.data(), static_cast<int64_t>(x.size()), y.data(), nullptr),
            absl::OkStatus());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], 2 * x[i]);
}

}  // namespace
}  // namespace milepost::kernels::cuda
