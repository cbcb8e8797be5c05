#include "engine/runtime/gpu/device/host_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <thread>

namespace milepost::runtime {
namespace {

// Work that goes on until it is let go.
class HeldWork {
 public:
  absl::Status operator()() {
    std::unique_lock lock(mutex_);
    begun_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return let_go_; });
    done = true;
    return absl::OkStatus();
  }
  void WaitUntilBegun() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_; });
  }
  void LetGo() {
    std::lock_guard lock(mutex_);
    let_go_ = true;
    changed_.notify_all();
  }
  std::atomic<bool> done = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false;
  bool let_go_ = false;
};

TEST(HostWork, StopWaitsForWhatHasBegun) {
  HostWork work;
  HeldWork held;
  std::thread driver([&] { work.Run([&] { return held(); }); });
  held.WaitUntilBegun();
  EXPECT_TRUE(absl::IsDeadlineExceeded(work.Stop(absl::Milliseconds(1))));
  EXPECT_FALSE(held.done);
  std::thread other([&] { held.LetGo(); });
  EXPECT_EQ(work.Stop(absl::Seconds(60)), absl::OkStatus());
  EXPECT_TRUE(held.done);
  driver.join();
  other.join();
}

TEST(HostWork, NothingBeginsAfterStop) {
  HostWork work;
  int calls = 0;
  const auto count = [&] {
    ++calls;
    return absl::OkStatus();
  };
  work.Run(count);
  EXPECT_EQ(work.Stop(absl::ZeroDuration()), absl::OkStatus());
  work.Run(count);
  EXPECT_EQ(calls, 1);
}

TEST(HostWork, NothingBuildsOnWhatHasFailed) {
  HostWork work;
  int calls = 0;
  work.Run([] { return absl::DataLossError("first"); });
  work.Run([&] {
    ++calls;
    return absl::InternalError("second");
  });
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(work.status().message(), "first");
  EXPECT_EQ(work.Stop(absl::ZeroDuration()), absl::OkStatus());
}

}  // namespace
}  // namespace milepost::runtime
