// One pass: who starts, who makes room, who waits for what.
#include "coordinator/core/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace milepost::coordinator {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);
const SlotClass kA100 = {.model = "A100"};
const SlotClass kH200 = {.model = "H200"};
const SlotClass kLeft = {.pool = "left"};
const SlotClass kRight = {.pool = "right"};

class SchedulerTest : public ::testing::Test {
 protected:
  // `free` of `slots` slots of one worker.
  void Host(const std::string& worker, int slots, int free, const SlotClass& of = {},
            int64_t memory = 0) {
    PoolHost host = {.worker = worker};
    for (int i = 0; i < slots; ++i) host.slots.push_back({i, memory, i < free});
    input_.pools.try_emplace(of, of).first->second.AddHost(std::move(host));
  }
  Demand& Wants(int64_t job, int ranks, int queue = 0, int priority = 0) {
    input_.demands.push_back(
        {.job = job, .queue = queue, .priority = priority, .order = job, .ranks = ranks});
    return input_.demands.back();
  }
  void WindsUpOnSmallSlots(int64_t job, int ranks, int queue, int priority) {
    Demand& demand = Wants(job, ranks, queue, priority);
    demand.slot_bytes = 20;
    demand.admission = Admission::kHeld;
    demand.winding_up = true;
  }
  Holding& Holds(int64_t job, int slots, int queue = 0, int priority = 0, const SlotClass& of = {},
                 int64_t memory = 0) {
    input_.queues[queue].used += slots;
    SlotCounts counts;
    counts.Add(memory, slots);
    input_.holdings.push_back({.job = job,
                               .queue = queue,
                               .priority = priority,
                               .slot_class = of,
                               .slots = counts,
                               .held = slots,
                               .start = kNow - absl::Hours(1)});
    return input_.holdings.back();
  }
  void Run() {
    input_.now = kNow;
    input_.graceful_stop = absl::Minutes(2);
    schedule_ = PlanSchedule(input_);
  }
  std::string Started() const {
    return absl::StrJoin(schedule_.starts, " ", [](std::string* out, const Schedule::Start& start) {
      absl::StrAppend(out, start.job);
    });
  }
  std::string Victims() const {
    std::vector<int64_t> victims;
    for (const Schedule::Preemption& one : schedule_.preemptions) victims.push_back(one.victim);
    std::sort(victims.begin(), victims.end());
    return absl::StrJoin(victims, " ");
  }
  WaitCode Code(int64_t job) const { return schedule_.view.waiting.at(job).code; }

  ScheduleInput input_ = {.queues = {{.name = "default"}}};
  Schedule schedule_;
};

TEST_F(SchedulerTest, PriorityThenOrder) {
  Host("a", 4, 3);
  Wants(1, 1);
  Wants(2, 1, 0, 5);
  Wants(3, 1, 0, -1);
  Wants(4, 1, 0, 5);
  Run();
  EXPECT_EQ(Started(), "2 4 1");
  EXPECT_EQ(Code(3), WaitCode::kSlots);
  EXPECT_EQ(schedule_.view.waiting.at(3).position, 1);
}

TEST_F(SchedulerTest, QueuesShareByWeight) {
  input_.queues = {{.name = "a", .weight = 1}, {.name = "b", .weight = 3}};
  Host("a", 8, 8);
  for (int i = 0; i < 8; ++i) Wants(1 + i, 1, 0);
  for (int i = 0; i < 8; ++i) Wants(101 + i, 1, 1);
  Run();
  EXPECT_EQ(Started(), "1 101 102 103 2 104 105 106");
}

TEST_F(SchedulerTest, WhatIsGuaranteedComesFirst) {
  input_.queues = {{.name = "a"}, {.name = "b", .guaranteed = 3}};
  Host("a", 8, 4);
  for (int i = 0; i < 4; ++i) Wants(1 + i, 1, 0);
  for (int i = 0; i < 4; ++i) Wants(101 + i, 1, 1);
  Run();
  EXPECT_EQ(Started(), "101 102 103 1");
}

TEST_F(SchedulerTest, NoQueueExceedsItsLimit) {
  input_.queues = {{.name = "a", .limit = 3}, {.name = "b"}};
  Host("a", 8, 6);
  Holds(9, 2, 0);
  Wants(1, 2, 0);
  Wants(2, 1, 0);  // would fit, but not pass the one before it
  Wants(3, 5, 0);
  Wants(101, 1, 1);
  Run();
  EXPECT_EQ(Started(), "101");
  EXPECT_EQ(Code(1), WaitCode::kLimit);
  EXPECT_EQ(Code(2), WaitCode::kTurn);
  EXPECT_EQ(schedule_.view.waiting.at(2).blocker, 1);
  EXPECT_EQ(Code(3), WaitCode::kTooFarLimit);
}

TEST_F(SchedulerTest, AJobThatCannotRunAtAllHoldsNobodyUp) {
  Host("a", 4, 4);
  Wants(1, 5);
  Wants(2, 2);
  Run();
  EXPECT_EQ(Started(), "2");
  EXPECT_EQ(Code(1), WaitCode::kTooFewSlots);
}

TEST_F(SchedulerTest, NothingPassesAHeadWhoseStartIsNotKnown) {
  Host("a", 4, 1);
  Holds(9, 3);
  Wants(1, 4);
  Wants(2, 1).time_limit = absl::Minutes(1);
  Run();
  EXPECT_EQ(Started(), "");
  EXPECT_EQ(Code(2), WaitCode::kTurn);
  EXPECT_EQ(schedule_.view.head_start, absl::InfiniteFuture());
  ASSERT_EQ(schedule_.view.holders.size(), 1u);
  EXPECT_EQ(schedule_.view.holders[0].job, 9);
}

TEST_F(SchedulerTest, BackfillsWhatEndsBeforeTheHeadStarts) {
  Host("a", 4, 2);
  Holds(9, 2).release = kNow + absl::Minutes(60);
  Wants(1, 3);
  Wants(2, 2).time_limit = absl::Minutes(59);  // and 2 minutes to stop: too long
  Wants(3, 1).time_limit = absl::Minutes(58);
  Wants(4, 1);  // no limit, but one slot is left over when the head starts
  Wants(5, 1);
  Run();
  EXPECT_EQ(Started(), "3 4");
  EXPECT_EQ(schedule_.view.head_start, kNow + absl::Minutes(60));
  EXPECT_EQ(Code(1), WaitCode::kSlots);
  EXPECT_EQ(Code(2), WaitCode::kTurn);
}

TEST_F(SchedulerTest, OnlyTheModelThatTheHeadWaitsForIsReserved) {
  Host("a", 4, 2, kH200);
  Host("b", 4, 2, kA100);
  Holds(9, 2, 0, 0, kH200);
  Demand& head = Wants(1, 4);
  head.device_model = "h200";
  Wants(2, 2);
  Run();
  EXPECT_EQ(Started(), "2");
  EXPECT_EQ(schedule_.starts[0].placed[0].worker, "b");
}

TEST_F(SchedulerTest, AGangIsInOnePool) {
  Host("a", 4, 3, kLeft);
  Host("b", 4, 4, kRight);
  Host("c", 2, 2);
  Wants(1, 5);
  Wants(2, 4);
  Wants(3, 3);
  Wants(4, 2).pool = "right";
  Wants(5, 2).pool = "rig";
  Run();
  EXPECT_EQ(Started(), "2 3");
  EXPECT_EQ(schedule_.starts[0].placed[3].worker, "b");
  EXPECT_EQ(schedule_.starts[1].placed[2].worker, "a");
  EXPECT_EQ(Code(1), WaitCode::kTooFewSlots);
  EXPECT_EQ(Code(4), WaitCode::kSlots) << "in other pools there is room";
  EXPECT_EQ(Code(5), WaitCode::kTooFewSlots) << "no part of a pool's name";
}

TEST_F(SchedulerTest, OnlyThePoolThatTheHeadWaitsForIsReserved) {
  Host("a", 4, 2, kLeft);
  Host("b", 4, 2, kRight);
  Holds(9, 2, 0, 0, kLeft).release = kNow + absl::Minutes(30);
  Holds(8, 2, 0, 0, kRight).release = kNow + absl::Minutes(5);
  Wants(1, 4).pool = "left";
  Wants(2, 1).pool = "left";
  Wants(3, 2);
  Run();
  EXPECT_EQ(Started(), "3");
  EXPECT_EQ(schedule_.starts[0].placed[0].worker, "b");
  EXPECT_EQ(schedule_.view.head_start, kNow + absl::Minutes(30));
  ASSERT_EQ(schedule_.view.holders.size(), 1u);
  EXPECT_EQ(schedule_.view.holders[0].job, 9);
}

TEST_F(SchedulerTest, OnlyJobsOfThePoolMakeRoom) {
  Host("a", 4, 0, kLeft);
  Host("b", 4, 0, kRight);
  Holds(1, 4, 0, 0, kLeft);
  Holds(2, 4, 0, 1, kRight);
  Wants(3, 4, 0, 5).pool = "right";
  Run();
  EXPECT_EQ(Victims(), "2");
}

TEST_F(SchedulerTest, InAnotherPoolSomebodyMayMakeRoom) {
  Host("a", 4, 0, kLeft);
  Host("b", 4, 0, kRight);
  Holds(1, 4, 0, 9, kLeft);
  Holds(2, 4, 0, 1, kRight);
  Wants(3, 4, 0, 5).pool = "left";  // nobody can
  Wants(4, 4, 0, 5).pool = "right";
  Run();
  EXPECT_EQ(Victims(), "2");
}

TEST_F(SchedulerTest, AnElasticJobGrowsInItsPool) {
  Host("a", 4, 2, kLeft);
  Host("b", 4, 4, kRight);
  Holds(1, 2, 0, 0, kLeft).larger = {{.ranks = 4}, {.ranks = 6}};
  Run();
  ASSERT_EQ(schedule_.resizes.size(), 1u);
  EXPECT_EQ(schedule_.resizes[0].ranks, 4);
}

TEST_F(SchedulerTest, AHigherPriorityMakesTheLowestLeave) {
  Host("a", 8, 1);
  Holds(1, 2, 0, 3);
  Holds(2, 2, 0, 1);
  Holds(3, 2, 0, 1).start = kNow - absl::Minutes(1);  // the one that started last
  Holds(4, 1, 0, 7);
  Wants(5, 3, 0, 5);
  Run();
  EXPECT_EQ(Victims(), "3");
  EXPECT_EQ(Code(5), WaitCode::kRoomIsMade);
  EXPECT_EQ(Started(), "");
}

TEST_F(SchedulerTest, NoMoreLeaveThanAreNeeded) {
  Host("a", 8, 0);
  Holds(1, 1, 0, 0);
  Holds(2, 6, 0, 1);
  Wants(3, 6, 0, 5);
  Run();
  EXPECT_EQ(Victims(), "2");
}

TEST_F(SchedulerTest, NobodyLeavesWhereItDoesNotHelp) {
  Host("a", 8, 0);
  Holds(1, 2, 0, 0);
  Holds(2, 6, 0, 9);
  Wants(3, 3, 0, 5);
  Run();
  EXPECT_EQ(Victims(), "");
  EXPECT_EQ(Code(3), WaitCode::kSlots);
}

TEST_F(SchedulerTest, RoomIsMadeOnce) {
  Host("a", 4, 0);
  Holding& leaving = Holds(1, 4, 0, 0);
  leaving.leaving = true;
  leaving.leaves_for = 2;
  Holds(3, 0, 0, 0);
  Demand& winner = Wants(2, 4, 0, 5);
  winner.admission = Admission::kGranted;
  input_.queues[0].used += 4;
  Wants(4, 1, 0, 9);
  Run();
  EXPECT_EQ(Victims(), "");
  EXPECT_EQ(Code(2), WaitCode::kRoomIsMade);
  EXPECT_EQ(Started(), "");
  EXPECT_TRUE(schedule_.no_longer_admitted.empty());
}

TEST_F(SchedulerTest, AGrantThatCameToNothingIsGivenUp) {
  Host("a", 4, 2);  // the host of the victims is gone
  Holds(9, 2, 0, 9);
  Demand& winner = Wants(2, 4, 0, 5);
  winner.admission = Admission::kGranted;
  input_.queues[0].used += 4;
  Run();
  EXPECT_EQ(schedule_.no_longer_admitted, std::vector<int64_t>{2});
  EXPECT_EQ(Code(2), WaitCode::kSlots);
}

TEST_F(SchedulerTest, AGuaranteeIsTakenBackFromWhoHasMoreThanTheirs) {
  input_.queues = {{.name = "a", .guaranteed = 4}, {.name = "b", .guaranteed = 2}};
  Host("a", 8, 0);
  Holds(1, 4, 1, 9);
  Holds(2, 4, 1, 100);
  Wants(3, 4, 0, -5);  // whatever the priorities
  Run();
  EXPECT_EQ(Victims(), "1");
}

TEST_F(SchedulerTest, NothingIsTakenBackBeyondAGuaranteeNorWithinOne) {
  input_.queues = {{.name = "a", .guaranteed = 4}, {.name = "b", .guaranteed = 6}};
  Host("a", 8, 0);
  Holds(1, 2, 0);
  Holds(2, 6, 1);
  Wants(3, 3, 0);
  Wants(4, 2, 0);
  Run();
  EXPECT_EQ(Victims(), "");
}

TEST_F(SchedulerTest, BehindAHeadOfAnotherQueueRoomIsMadeWithinOnesOwn) {
  input_.queues = {{.name = "a"}, {.name = "b"}};
  Host("a", 8, 1);
  Holds(1, 2, 1, 0);
  Holds(2, 5, 1, 0).release = kNow + absl::Minutes(30);
  Wants(3, 8, 0);     // the head: its queue holds nothing
  Wants(4, 2, 1, 5);  // takes the place of 1
  Run();
  EXPECT_EQ(Code(3), WaitCode::kSlots);
  EXPECT_EQ(Victims(), "1");
}

TEST_F(SchedulerTest, RoomIsMadeWithinAQueuesLimit) {
  input_.queues = {{.name = "a", .limit = 4}, {.name = "b"}};
  Host("a", 16, 12);
  Holds(1, 2, 0, 0);
  Holds(2, 2, 0, 1);
  Wants(3, 2, 0, 5);
  Run();
  EXPECT_EQ(Victims(), "1");
  EXPECT_EQ(Started(), "");
}

TEST_F(SchedulerTest, WhoeverRecoversComesFirst) {
  Host("a", 4, 2);
  Holds(9, 2);
  Wants(1, 2);
  Demand& back = Wants(7, 2);
  back.admission = Admission::kHeld;
  input_.queues[0].used += 2;
  Run();
  EXPECT_EQ(Started(), "7");
}

TEST_F(SchedulerTest, WhoeverBacksOffKeepsItsSlots) {
  Host("a", 4, 2);
  Demand& back = Wants(1, 2);
  back.admission = Admission::kHeld;
  back.not_before = kNow + absl::Seconds(3);
  input_.queues[0].used += 2;
  Wants(2, 1);
  Run();
  EXPECT_EQ(Started(), "");
  EXPECT_EQ(Code(1), WaitCode::kBackingOff);
}

TEST_F(SchedulerTest, WhoeverRecoveredButDoesNotFitMayMakeRoom) {
  Host("a", 4, 0);
  Holds(9, 4, 0, 0);
  Demand& back = Wants(1, 4, 0, 100);
  back.admission = Admission::kHeld;
  input_.queues[0].used += 4;
  Run();
  EXPECT_EQ(Victims(), "9");
  EXPECT_EQ(Code(1), WaitCode::kRoomIsMade);
}

TEST_F(SchedulerTest, WhatALoweredLimitForbidsIsNotKeptFromOthers) {
  input_.queues = {{.name = "a", .limit = 4}, {.name = "b"}};
  Host("a", 8, 4);
  Holds(9, 4, 0);
  Demand& back = Wants(1, 4, 0);
  back.admission = Admission::kHeld;
  input_.queues[0].used += 4;
  Wants(2, 4, 1);
  Run();
  EXPECT_EQ(Started(), "2");
  EXPECT_EQ(Code(1), WaitCode::kLimit);
}

TEST_F(SchedulerTest, RoomThatWasMadeIsNotTakenByWhoeverRecovers) {
  input_.queues = {{.name = "default"}, {.name = "team", .guaranteed = 4}};
  Host("a", 12, 4);
  Holds(1, 4);
  Holds(2, 4);
  Demand& back = Wants(3, 8);
  back.admission = Admission::kHeld;
  back.not_before = kNow + absl::Seconds(5);
  input_.queues[0].used += 8;
  Demand& winner = Wants(4, 4, 1);
  winner.admission = Admission::kGranted;
  input_.queues[1].used += 4;
  Run();
  EXPECT_EQ(Started(), "4");
  EXPECT_EQ(Victims(), "");
}

TEST_F(SchedulerTest, NobodyLeavesForWhatComesFreeByItself) {
  input_.queues = {{.name = "a", .limit = 4}};
  Host("a", 4, 0, kA100);
  Host("b", 4, 0, kH200);
  Holds(8, 2, 0, 0, kA100).leaving = true;
  input_.queues[0].leaving += 2;
  Holds(9, 2, 0, 0, kA100);
  Wants(1, 2, 0, 5);
  Run();
  EXPECT_EQ(Victims(), "") << "of the limit";
  input_.queues[0] = {.name = "a"};
  input_.holdings.clear();
  Holds(8, 4, 0, 0, kA100).leaving = true;
  Holds(9, 4, 0, 0, kH200);
  Run();
  EXPECT_EQ(Victims(), "") << "of another model";
}

TEST_F(SchedulerTest, SlotsThatDoNotComeBackHelpNobody) {
  Host("a", 4, 0);
  Holds(1, 4, 0, 0).slots = {};  // on a host that drains
  Holds(2, 4, 0, 1);
  Wants(3, 4, 0, 5);
  Run();
  EXPECT_EQ(Victims(), "2");
}

// Slots of one model, and half of them too small for the head.
TEST_F(SchedulerTest, SlotsThatAreTooSmallComeFreeForOthers) {
  Host("a", 4, 0, kA100, 40);
  Host("b", 4, 0, kA100, 80);
  Holds(1, 4, 0, 5, kA100, 40).release = kNow + absl::Minutes(10);
  Holds(2, 4, 0, 5, kA100, 80).release = kNow + absl::Hours(1);
  Wants(3, 4).slot_bytes = 80;
  Run();
  EXPECT_EQ(schedule_.view.head_start, kNow + absl::Hours(1));
  ASSERT_EQ(schedule_.view.holders.size(), 1u);
  EXPECT_EQ(schedule_.view.holders[0].job, 2);
}

TEST_F(SchedulerTest, NobodyLeavesWhoseSlotsAreTooSmall) {
  Host("a", 4, 0, kA100, 40);
  Host("b", 4, 0, kA100, 80);
  Holds(1, 4, 0, 0, kA100, 40);
  Holds(2, 4, 0, 1, kA100, 80);
  Wants(3, 4, 0, 5).slot_bytes = 80;
  Run();
  EXPECT_EQ(Victims(), "2");
}

TEST_F(SchedulerTest, WhatLeavesAndIsTooSmallIsNotWaitedFor) {
  Host("a", 4, 0, kA100, 40);
  Host("b", 4, 0, kA100, 80);
  Holds(1, 4, 0, 1, kA100, 40).leaving = true;
  Holds(2, 4, 0, 1, kA100, 80);
  Wants(3, 4, 0, 5).slot_bytes = 80;
  Run();
  EXPECT_EQ(Victims(), "2");
}

// The slots that it will need again are those that it leaves, which are too small for others.
TEST_F(SchedulerTest, WhatWindsUpOnSmallSlotsClaimsThose) {
  Host("a", 4, 0, kA100, 40);
  Host("b", 8, 4, kA100, 80);
  Holds(1, 4, 0, 5, kA100, 40).leaving = true;
  Holds(2, 4, 0, 1, kA100, 80);
  WindsUpOnSmallSlots(1, 4, 0, 5);
  Wants(3, 4, 0, 5).slot_bytes = 80;
  Run();
  EXPECT_EQ(Victims(), "") << "four large ones are free once job 1 has its own again";
}

TEST_F(SchedulerTest, SmallSlotsThatAreClaimedDoNotHideWhenLargeOnesComeFree) {
  Host("a", 4, 0, kA100, 40);
  Host("b", 4, 0, kA100, 80);
  Holding& small = Holds(1, 4, 0, 5, kA100, 40);
  small.leaving = true;
  small.release = kNow + absl::Minutes(1);
  Holds(2, 4, 0, 5, kA100, 80).release = kNow + absl::Hours(1);
  WindsUpOnSmallSlots(1, 4, 0, 5);
  Wants(3, 4).slot_bytes = 80;
  Run();
  EXPECT_EQ(schedule_.view.head_start, kNow + absl::Hours(1));
}

TEST_F(SchedulerTest, WhatIsAwayIsNeitherPlacedOnNorForgotten) {
  PoolHost away = {.worker = "a", .away = true};
  for (int i = 0; i < 4; ++i) away.slots.push_back({i, 0, true});
  input_.pools.try_emplace(SlotClass(), SlotClass()).first->second.AddHost(std::move(away));
  Host("b", 4, 4);
  Holds(9, 0);
  Wants(1, 8);
  Wants(2, 1, 0, -1);
  Run();
  EXPECT_EQ(Started(), "") << "the head waits for who is away, and holds its place";
  EXPECT_EQ(Code(1), WaitCode::kSlots);
}

TEST_F(SchedulerTest, AGatedJobHoldsNobodyUp) {
  Host("a", 4, 4);
  Demand& gated = Wants(1, 4);
  gated.gate = WaitCode::kDependency;
  gated.gate_job = 7;
  Wants(2, 4);
  Run();
  EXPECT_EQ(Started(), "2");
  EXPECT_EQ(Code(1), WaitCode::kDependency);
  EXPECT_EQ(schedule_.view.waiting.at(1).blocker, 7);
}

}  // namespace
}  // namespace milepost::coordinator
