#include "coordinator/store/group_sync.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace milepost::coordinator {
namespace {

// What was written before Sync was called is in a sync that begins after.
TEST(GroupSyncTest, CoversWhatWasWrittenBefore) {
  std::atomic<int> written = 0, synced = 0;
  std::atomic<int> syncs = 0;
  GroupSync group([&] {
    const int seen = written;
    std::this_thread::yield();
    synced = seen;
    ++syncs;
    return absl::OkStatus();
  });
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (int j = 0; j < 500; ++j) {
        const int mine = ++written;
        EXPECT_TRUE(group.Sync().ok());
        EXPECT_GE(synced, mine);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_LE(syncs, 8 * 500);
}

TEST(GroupSyncTest, ThoseThatComeWhileOneRunsShareTheNext) {
  constexpr int kCallers = 16;
  absl::Notification begun, go_on;
  std::atomic<int> syncs = 0, failed = 0;
  GroupSync group([&] {
    if (++syncs > 1) return absl::UnavailableError("no disk");
    begun.Notify();
    go_on.WaitForNotification();
    return absl::OkStatus();
  });
  std::thread first([&] { EXPECT_TRUE(group.Sync().ok()); });
  begun.WaitForNotification();
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] {
      if (!group.Sync().ok()) ++failed;
    });
  }
  while (group.waiting() < kCallers) std::this_thread::yield();
  go_on.Notify();
  first.join();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(syncs, 2);
  EXPECT_EQ(failed, kCallers) << "each hears how the sync went that it waited for";
}

}  // namespace
}  // namespace milepost::coordinator
