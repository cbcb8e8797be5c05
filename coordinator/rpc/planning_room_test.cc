#include "coordinator/rpc/planning_room.h"

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace milepost::coordinator {
namespace {

const StillWanted kAlways = [] { return absl::OkStatus(); };
// Says so once it has been asked: one that could go in would.
const StillWanted kNever = [] { return absl::CancelledError("gone"); };

// Whether `who` would have to wait.
bool Waits(PlanningRoom& room, const std::string& who) {
  int asked = 0;
  const absl::Status status = room.Enter(
      who, [&] { return ++asked == 1 ? absl::OkStatus() : absl::CancelledError("waited"); });
  if (status.ok()) room.Leave(who);
  return !status.ok();
}

TEST(PlanningRoom, HasOnePlanOfACallerAndAFewInAll) {
  PlanningRoom room;
  ASSERT_TRUE(room.Enter("alice", kAlways).ok());
  EXPECT_TRUE(Waits(room, "alice"));
  EXPECT_FALSE(Waits(room, "bob"));
  ASSERT_TRUE(room.Enter("bob", kAlways).ok());
  EXPECT_TRUE(Waits(room, "carol"));
  EXPECT_TRUE(Waits(room, ""));
  room.Leave("alice");
  EXPECT_FALSE(Waits(room, "alice"));
  EXPECT_FALSE(Waits(room, ""));
  room.Leave("bob");
  EXPECT_EQ(room.Enter("alice", kNever), absl::CancelledError("gone"));
  EXPECT_FALSE(Waits(room, "alice")) << "who has gone takes no room";
}

TEST(PlanningRoom, WhoLeavesLetsAnotherIn) {
  PlanningRoom room;
  ASSERT_TRUE(room.Enter("alice", kAlways).ok());
  absl::Notification asked;
  std::thread second([&] {
    EXPECT_TRUE(room.Enter("alice",
                           [&] {
                             if (!asked.HasBeenNotified()) asked.Notify();
                             return absl::OkStatus();
                           })
                    .ok());
    room.Leave("alice");
  });
  asked.WaitForNotification();
  room.Leave("alice");
  second.join();
}

TEST(PlanningRoom, NotEverybodyMayWait) {
  PlanningRoom room;
  ASSERT_TRUE(room.Enter("alice", kAlways).ok());
  std::atomic<bool> over = false;
  std::atomic<int> waiting = 0;
  const auto until_over = [&](bool first) {
    if (first) ++waiting;
    return over ? absl::CancelledError("over") : absl::OkStatus();
  };
  std::vector<std::thread> waiters;
  for (int i = 1; i < PlanningRoom::kMostCallsOfOne; ++i) {
    waiters.emplace_back([&] {
      bool first = true;
      EXPECT_FALSE(
          room.Enter("alice", [&] { return until_over(std::exchange(first, false)); }).ok());
    });
  }
  while (waiting < PlanningRoom::kMostCallsOfOne - 1) std::this_thread::yield();
  EXPECT_EQ(room.Enter("alice", kAlways).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(Waits(room, "bob"));
  over = true;
  for (std::thread& waiter : waiters) waiter.join();
  room.Leave("alice");
}

}  // namespace
}  // namespace milepost::coordinator
