#include "coordinator/desks/planning_room.h"

#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
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
  const auto entered = room.Enter(
      who, [&] { return ++asked == 1 ? absl::OkStatus() : absl::CancelledError("waited"); });
  if (entered.ok()) room.Leave(*entered);
  return !entered.ok();
}

uint64_t Entered(PlanningRoom& room, const std::string& who) {
  const auto entered = room.Enter(who, kAlways);
  EXPECT_TRUE(entered.ok()) << entered.status();
  return entered.value_or(0);
}

// Callers who wait until they are told to go, or have their turn.
class Waiters {
 public:
  explicit Waiters(PlanningRoom* room) : room_(room) {}
  ~Waiters() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  // Returns once it waits.
  void Add(const std::string& who) {
    absl::Notification waits;
    threads_.emplace_back([this, who, &waits] {
      bool first = true;
      const auto entered = room_->Enter(who, [&] {
        // What it is asked for again is no more in the scope of Add.
        if (std::exchange(first, false)) waits.Notify();
        return over_ ? absl::CancelledError("over") : absl::OkStatus();
      });
      if (first) waits.Notify();
      absl::MutexLock lock(&mutex_);
      turns_.push_back({who, entered.status().code(), entered.value_or(0)});
    });
    waits.WaitForNotification();
  }
  struct Turn {
    std::string who;
    absl::StatusCode code = absl::StatusCode::kOk;
    uint64_t entered = 0;
  };
  // The next that does not wait any more.
  Turn Next() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::deque<Turn>* turns) { return !turns->empty(); }, &turns_));
    Turn turn = turns_.front();
    turns_.pop_front();
    return turn;
  }

 private:
  PlanningRoom* const room_;
  std::atomic<bool> over_ = false;
  absl::Mutex mutex_;
  std::deque<Turn> turns_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

TEST(PlanningRoom, HasOnePlanOfACallerAndAFewInAll) {
  PlanningRoom room;
  const uint64_t alice = Entered(room, "alice");
  EXPECT_TRUE(Waits(room, "alice"));
  EXPECT_FALSE(Waits(room, "bob"));
  const uint64_t bob = Entered(room, "bob");
  EXPECT_TRUE(Waits(room, "carol"));
  EXPECT_TRUE(Waits(room, ""));
  room.Leave(alice);
  EXPECT_FALSE(Waits(room, "alice"));
  EXPECT_FALSE(Waits(room, ""));
  room.Leave(bob);
  EXPECT_EQ(room.Enter("alice", kNever).status(), absl::CancelledError("gone"));
  EXPECT_FALSE(Waits(room, "alice")) << "who has gone takes no room";
}

TEST(PlanningRoom, WhoHadNoTurnForTheLongestIsNext) {
  PlanningRoom room;
  uint64_t alice = Entered(room, "alice");
  const uint64_t bob = Entered(room, "bob");
  Waiters waiters(&room);
  for (int i = 0; i < 5; ++i) waiters.Add("alice");
  waiters.Add("carol");
  waiters.Add("bob");
  room.Leave(alice);
  Waiters::Turn turn = waiters.Next();
  EXPECT_EQ(turn.who, "alice") << "carol came after her last turn";
  room.Leave(turn.entered);
  turn = waiters.Next();
  EXPECT_EQ(turn.who, "carol") << "though alice came earlier";
  room.Leave(bob);
  EXPECT_EQ(waiters.Next().who, "bob");
  room.Leave(turn.entered);
  EXPECT_EQ(waiters.Next().who, "alice");
}

TEST(PlanningRoom, NotEverybodyMayWait) {
  PlanningRoom room;
  const uint64_t alice = Entered(room, "alice");
  {
    Waiters waiters(&room);
    for (int i = 1; i < PlanningRoom::kMostCallsOfOne; ++i) waiters.Add("alice");
    EXPECT_EQ(room.Enter("alice", kAlways).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(Waits(room, "bob"));
  }
  room.Leave(alice);
}

TEST(PlanningRoom, TheCrowdOfAProjectGivesWay) {
  PlanningRoom room;
  const uint64_t first = Entered(room, "projects/p/users/0");
  const uint64_t second = Entered(room, "projects/p/users/1");
  Waiters waiters(&room);
  for (int i = 2; i < PlanningRoom::kMostCalls; ++i) {
    waiters.Add(absl::StrCat("projects/p/users/", i % 8));
  }
  EXPECT_EQ(room.Enter("projects/p/users/9", kAlways).status().code(),
            absl::StatusCode::kResourceExhausted);
  waiters.Add("projects/q/users/0");
  const Waiters::Turn displaced = waiters.Next();
  EXPECT_EQ(displaced.who, "projects/p/users/7") << "who came last";
  EXPECT_EQ(displaced.code, absl::StatusCode::kResourceExhausted);
  room.Leave(first);
  room.Leave(second);
}

}  // namespace
}  // namespace milepost::coordinator
