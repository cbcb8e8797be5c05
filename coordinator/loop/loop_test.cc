#include "coordinator/loop/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "coordinator/loop/loop_thread.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Next = Loop::Next;

class FakeHost : public LoopHost {
 public:
  void Wake() override {
    ++wakes;
    if (on_wake) on_wake();
  }
  absl::Time Now() override { return now; }
  absl::Time Steady() override { return now; }
  Outcome Decide(const State& state, std::vector<Event>& events, absl::Time at) override {
    batches.push_back(events.size());
    return DecideAll(state, events, at, Config());
  }
  Outcome Schedule(const State& state, absl::Time at) override {
    ++passes;
    now += pass_time;
    return DecideSchedule(state, at, Config());
  }
  absl::Status MayAct() override { return may_act; }
  CheckpointsChanged NewestCheckpoint(const std::string& job) override { return {job, newest, 7}; }
  void Durable(const State&, const Outcome&) override {}
  void Landing(const State&, Outcome*) override {}
  void Dispatch(const State&, const Outcome&) override { ++dispatched; }
  void Landed() override {}
  void DecidedIn(absl::Duration) override {}
  void ScheduledIn(absl::Duration) override {}
  void HeldUp(absl::Duration time) override { held_up += time; }

  absl::Time now = absl::FromUnixSeconds(1'000'000);
  absl::Status may_act;
  std::string newest;
  std::vector<size_t> batches;
  std::atomic<int> wakes = 0;
  int passes = 0;
  absl::Duration pass_time;
  int dispatched = 0;
  absl::Duration held_up;
  std::function<void()> on_wake;
};

Event NewQueue(const std::string& id) {
  QueuePut put = {.create = true};
  put.queue.set_name(absl::StrCat("queues/", id));
  return put;
}

class LoopTest : public ::testing::Test {
 protected:
  // Its answer goes to `answers`, as "a: OK".
  void Post(const std::string& id) {
    loop_.Post({.event = [id] { return NewQueue(id); }, .done = Answer(id)});
  }
  absl::AnyInvocable<void(const absl::StatusOr<std::string>&)> Answer(const std::string& id) {
    return [this, id](const absl::StatusOr<std::string>& result) {
      answers_.push_back(absl::StrCat(id, ": ", absl::StatusCodeToString(result.status().code())));
    };
  }
  // To the next write, which is not made yet, or to sleep.
  Next Go() {
    Next next = loop_.Step();
    while (next.what == Next::kStep) next = loop_.Step();
    return next;
  }
  // Writes all that there is to write.
  void Settle() {
    while (Go().what == Next::kWrite) loop_.Wrote(absl::OkStatus());
  }

  FakeHost host_;
  Loop loop_{&host_, /*most_waiting=*/4};
  std::vector<std::string> answers_;
};

TEST_F(LoopTest, WhatWaitsTogetherIsOneWriteAndIsAnsweredAfterIt) {
  Post("a");
  Post("b");
  ASSERT_EQ(Go().what, Next::kWrite);
  EXPECT_EQ(loop_.writing().queues.size(), 2u);
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_EQ(loop_.own_state().FindQueue("a"), nullptr);
  loop_.Wrote(absl::OkStatus());
  EXPECT_THAT(answers_, ElementsAre("a: OK", "b: OK"));
  EXPECT_NE(loop_.own_state().FindQueue("a"), nullptr);
  EXPECT_EQ(host_.dispatched, 1);
}

TEST_F(LoopTest, OfABatchThatCannotBeStoredEachIsDecidedOnAlone) {
  Post("a");
  Post("b");
  ASSERT_EQ(Go().what, Next::kWrite);
  loop_.Wrote(absl::ResourceExhaustedError("full"));
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_EQ(host_.dispatched, 0);
  ASSERT_EQ(Go().what, Next::kWrite);
  loop_.Wrote(absl::ResourceExhaustedError("full"));
  ASSERT_EQ(Go().what, Next::kWrite);
  loop_.Wrote(absl::OkStatus());
  EXPECT_THAT(answers_, ElementsAre("a: RESOURCE_EXHAUSTED", "b: OK"));
  EXPECT_EQ(loop_.own_state().FindQueue("a"), nullptr);
  EXPECT_NE(loop_.own_state().FindQueue("b"), nullptr);
}

TEST_F(LoopTest, NothingIsAppliedWhenThisProcessMayNotActAfterTheWrite) {
  Post("a");
  ASSERT_EQ(Go().what, Next::kWrite);
  host_.may_act = absl::UnavailableError("another one serves");
  loop_.Wrote(absl::OkStatus());
  EXPECT_THAT(answers_, ElementsAre("a: UNAVAILABLE"));
  EXPECT_EQ(loop_.own_state().FindQueue("a"), nullptr);
  EXPECT_EQ(host_.dispatched, 0);
}

TEST_F(LoopTest, AGuardedEventSeesWhatWasAppliedBeforeIt) {
  bool attached = false;
  std::optional<bool> seen;
  loop_.Post({.event = [] { return NewQueue("a"); },
              .applied = [&] { attached = true; },
              .done = Answer("a")});
  loop_.Post({.event = [&]() -> std::optional<Event> {
                seen = attached;
                return std::nullopt;
              },
              .guarded = true,
              .done = Answer("b")});
  ASSERT_EQ(Go().what, Next::kWrite);
  EXPECT_EQ(seen, std::nullopt);
  loop_.Wrote(absl::OkStatus());
  Settle();
  EXPECT_EQ(seen, true);
  EXPECT_THAT(answers_, ElementsAre("a: OK", "b: OK"));
}

TEST_F(LoopTest, TooManyAreRefusedAtOnce) {
  for (const char* id : {"a", "b", "c", "d", "e"}) Post(id);
  EXPECT_THAT(answers_, ElementsAre("e: RESOURCE_EXHAUSTED"));
  Settle();
  EXPECT_EQ(answers_.size(), 5u);
}

TEST_F(LoopTest, WhatWaitsWhenItClosesIsAnswered) {
  Post("a");
  loop_.Close();
  Post("b");
  EXPECT_THAT(answers_, ElementsAre("b: UNAVAILABLE"));
  loop_.End();
  EXPECT_THAT(answers_, ElementsAre("b: UNAVAILABLE", "a: UNAVAILABLE"));
}

TEST_F(LoopTest, APostWakesWhoSleepsOnce) {
  Settle();
  Post("a");
  Post("b");
  EXPECT_EQ(host_.wakes, 1);
  ASSERT_EQ(Go().what, Next::kWrite);
  Post("c");  // during the write: it is seen without
  EXPECT_EQ(host_.wakes, 1);
  loop_.Wrote(absl::OkStatus());
  ASSERT_EQ(Go().what, Next::kWrite);
  EXPECT_EQ(loop_.writing().queues.count("c"), 1u);
}

// A job that knows no checkpoint yet.
State OneJob() {
  State state;
  v1::JobRecord record;
  record.mutable_job()->set_name("jobs/1");
  record.mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
  state.PutJob(record);
  return state;
}

TEST_F(LoopTest, NoPassGoesBeforeACheckpointThatCouldNotBeNoted) {
  loop_.Load(OneJob());
  host_.newest = "checkpoints/3";
  Loop::Entry note = loop_.NoteNewest("jobs/1");
  note.done = Answer("note");
  loop_.Post(std::move(note));
  ASSERT_EQ(Go().what, Next::kWrite);
  loop_.Wrote(absl::ResourceExhaustedError("full"));
  EXPECT_THAT(answers_, ElementsAre("note: RESOURCE_EXHAUSTED"));
  ASSERT_EQ(Go().what, Next::kWrite);  // again, before the pass
  EXPECT_EQ(host_.passes, 0);
  loop_.Wrote(absl::ResourceExhaustedError("full"));
  const Next next = Go();
  ASSERT_EQ(next.what, Next::kSleep);
  EXPECT_EQ(host_.passes, 0);
  host_.now += next.at_most;
  ASSERT_EQ(Go().what, Next::kWrite);
  loop_.Wrote(absl::OkStatus());
  Settle();
  EXPECT_EQ(host_.passes, 1);
  EXPECT_EQ(loop_.own_state().FindJob(1)->job().latest_checkpoint(), "checkpoints/3");
}

TEST_F(LoopTest, LeasesAreLengthenedByWhatASlowWriteTook) {
  Settle();
  Post("a");
  ASSERT_EQ(Go().what, Next::kWrite);
  host_.now += absl::Seconds(3);
  loop_.Wrote(absl::OkStatus());
  Settle();
  EXPECT_EQ(host_.held_up, absl::Seconds(3));
}

TEST_F(LoopTest, ThePauseBetweenPassesIsNotCountedAsTimeInWhichNobodyListened) {
  host_.pass_time = absl::Milliseconds(900);
  Settle();
  Post("a");  // wants another pass
  ASSERT_EQ(Go().what, Next::kWrite);
  loop_.Wrote(absl::OkStatus());
  while (host_.passes < 2) {
    const Next next = loop_.Step();
    if (next.what == Next::kSleep) host_.now += next.at_most;
  }
  EXPECT_EQ(host_.held_up, absl::ZeroDuration());
}

TEST_F(LoopTest, SleepsNoLongerThanASecond) {
  const Next next = Go();
  ASSERT_EQ(next.what, Next::kSleep);
  EXPECT_EQ(next.at_most, Loop::kLongestSleep);
}

TEST(LoopThreadTest, StepsForWhoeverWaitsAndAnswersAllWhenItStops) {
  FakeHost host;
  Loop loop(&host);
  std::atomic<int> writes = 0;
  LoopThread thread(&loop, {.write = [&](const Outcome&) {
    ++writes;
    return absl::OkStatus();
  }});
  host.on_wake = [&] { thread.Wake(); };
  ASSERT_TRUE(thread.Begin({CoordinatorRestarted{}}).ok());
  thread.Start();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(Do(&loop, NewQueue(absl::StrCat("q", caller, "-", i))).ok());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(writes, 50);
  thread.Stop();
  EXPECT_EQ(loop.own_state().queues().size(), 200u);
  EXPECT_TRUE(absl::IsUnavailable(Do(&loop, NewQueue("late")).status()));
}

TEST(LoopThreadTest, BeginSaysWhyItsWriteFailed) {
  FakeHost host;
  Loop loop(&host);
  LoopThread thread(&loop,
                    {.write = [](const Outcome&) { return absl::ResourceExhaustedError("full"); }});
  EXPECT_TRUE(absl::IsResourceExhausted(thread.Begin({NewQueue("a"), NewQueue("b")})));
  EXPECT_TRUE(loop.own_state().queues().empty());
}

}  // namespace
}  // namespace milepost::coordinator
