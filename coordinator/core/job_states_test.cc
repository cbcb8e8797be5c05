#include "coordinator/core/job_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "coordinator/core/state.h"

namespace milepost::coordinator {
namespace {

using ::testing::Contains;
using ::testing::UnorderedElementsAre;

std::set<v1::JobState> AllStates() {
  std::set<v1::JobState> states;
  for (int i = v1::JobState_MIN; i <= v1::JobState_MAX; ++i) {
    if (v1::JobState_IsValid(i) && i != 0) states.insert(static_cast<v1::JobState>(i));
  }
  return states;
}

// What can follow, by any number of causes but `without`.
std::set<v1::JobState> ReachedFrom(v1::JobState from, std::set<JobCause> without = {}) {
  std::set<v1::JobState> reached = {from};
  for (size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const JobMove& move : JobMoves()) {
      if (reached.contains(move.from) && !without.contains(move.cause)) reached.insert(move.to);
    }
  }
  reached.erase(v1::JOB_STATE_UNSPECIFIED);
  return reached;
}

TEST(JobStatesTest, OneCauseLeadsToOneState) {
  std::set<std::pair<v1::JobState, JobCause>> seen;
  for (const JobMove& move : JobMoves()) {
    EXPECT_TRUE(seen.emplace(move.from, move.cause).second)
        << v1::JobState_Name(move.from) << ", cause " << static_cast<int>(move.cause);
    EXPECT_EQ(NextState(move.from, move.cause), move.to);
  }
}

TEST(JobStatesTest, EveryStateIsReached) {
  EXPECT_EQ(ReachedFrom(v1::JOB_STATE_UNSPECIFIED), AllStates());
}

TEST(JobStatesTest, EveryCauseMayCome) {
  std::set<JobCause> causes;
  for (const JobMove& move : JobMoves()) causes.insert(move.cause);
  EXPECT_EQ(causes.size(), static_cast<size_t>(JobCause::kResumed) + 1);
}

TEST(JobStatesTest, AnEndIsLeftByItsUserAlone) {
  for (const v1::JobState state : AllStates()) {
    const std::set<v1::JobState> reached = ReachedFrom(state, {JobCause::kResumed});
    if (IsTerminal(state)) {
      EXPECT_THAT(reached, UnorderedElementsAre(state));
    } else if (state != v1::JOB_STATE_SUSPENDED) {
      EXPECT_THAT(reached, Contains(v1::JOB_STATE_SUCCEEDED)) << v1::JobState_Name(state);
    }
  }
}

TEST(JobStatesTest, AUserCanCancelWhateverHasNotEnded) {
  for (const v1::JobState state : AllStates()) {
    const bool can = NextState(state, JobCause::kCancelled).has_value() ||
                     NextState(state, JobCause::kCancelledHolding).has_value();
    EXPECT_EQ(can, !IsTerminal(state)) << v1::JobState_Name(state);
  }
}

TEST(JobStatesDeathTest, WhatIsNotInTheTableIsABug) {
  v1::Job job;
  job.set_name("jobs/7");
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  EXPECT_DEATH(Move(JobCause::kStarted, &job), "jobs/7 is JOB_STATE_SUCCEEDED");
}

}  // namespace
}  // namespace milepost::coordinator
