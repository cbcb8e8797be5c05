// On fake devices, whose clocks say what calls take.
#include "engine/measure/collective_bench.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/runtime/gpu/communicators/testing/in_process_device_communicator.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kBytes = 3 << 12;  // of 4 ranks: shares of 3 KiB

// The first run of each call is slow, and the others are not alike.
double CostOf(const std::string& name, int run) {
  const double base = name == "all-reduce"       ? 2e-3
                      : name == "reduce-scatter" ? 1e-3
                      : name == "all-gather"     ? 0.5e-3
                                                 : 1e-5;
  return run == 0 ? base / 10 : base * (1 + 0.1 * ((run + 1) % 3));
}

TEST(CollectiveBench, TheFastestRunCountsButNotTheFirst) {
  constexpr int kWorld = 4;
  const auto group = comm::MakeInProcessGroup(kWorld);
  std::vector<CollectiveRates> rates(kWorld);
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      FakeDevice device(static_cast<uint64_t>(rank));
      std::string last;
      int run = 0;
      device.SetCost([&](const std::string& name) {
        run = name == last ? run + 1 : 0;
        last = name;
        return CostOf(name, run);
      });
      InProcessDeviceCommunicator communicator(*group[rank]);
      const auto found = MeasureCollectives(device, communicator, {.bytes = kBytes, .repeats = 5});
      if (!found.ok()) return static_cast<void>(++failed);
      rates[rank] = *found;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(failed, 0);
  const double part = kBytes * 3.0 / 4;
  for (const CollectiveRates& found : rates) {
    EXPECT_NEAR(found.all_reduce, 2 * part / 2e-3, 1);
    EXPECT_NEAR(found.reduce_scatter, part / 1e-3, 1);
    EXPECT_NEAR(found.all_gather, part / 0.5e-3, 1);
    EXPECT_NEAR(found.small_seconds, 1e-5, 1e-9);
  }
}

TEST(CollectiveBench, OneRankAndLostPeersAreErrors) {
  FakeDevice device(1);
  const auto alone = comm::MakeInProcessGroup(1);
  InProcessDeviceCommunicator one(*alone[0]);
  EXPECT_EQ(MeasureCollectives(device, one, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto two = comm::MakeInProcessGroup(2);
  two[1]->Abort("the other one is gone");
  InProcessDeviceCommunicator first(*two[0]);
  EXPECT_FALSE(MeasureCollectives(device, first, {.bytes = 4096}).ok());
}

}  // namespace
}  // namespace milepost::runtime
