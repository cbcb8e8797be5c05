// Jobs that are deleted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error_details.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobDeletionTest : public ::testing::Test, public FakeCluster {
 protected:
  void TearDown() override { EXPECT_EQ(violation, ""); }

  std::string Ended() {
    const std::string job = Submit(1);
    Do(JobCancelled{job});
    return job;
  }
  absl::Status Delete(const std::string& job, std::set<std::string> checkpoints = {}) {
    return Do(JobDeleted{job, std::move(checkpoints)}).status;
  }
};

TEST_F(JobDeletionTest, OneThatHasEndedGoesAndItsNumberIsNotGivenAgain) {
  Ended();
  const std::string last = Ended();
  const Outcome outcome = Do(JobDeleted{last});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_TRUE(outcome.NeedsWrite());
  EXPECT_EQ(outcome.deleted_jobs, std::set<int64_t>{2});
  EXPECT_EQ(outcome.last_job, 2);
  EXPECT_EQ(state.FindJob(2), nullptr);
  EXPECT_EQ(Delete(last).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Submit(1), "jobs/3");
}

TEST_F(JobDeletionTest, OneThatHasNotEndedStays) {
  const std::string job = Submit(1);
  const absl::Status refused = Delete(job);
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_JOB_NOT_OVER);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("jobs/1 is QUEUED"));
  // Nor in the decision that ends it: what is to be told of that is not stored yet.
  const Outcome both = DecideAll(state, {JobCancelled{job}, JobDeleted{job}}, now, config);
  EXPECT_EQ(ReasonOf(both.results[1].status), v1::ERROR_REASON_JOB_NOT_OVER);
  EXPECT_THAT(both.deleted_jobs, IsEmpty());
  EXPECT_EQ(both.durable_jobs.size(), 1u);
}

TEST_F(JobDeletionTest, OneThatOthersNeedStays) {
  const std::string job = Ended();
  v1::JobSpec waits = Spec(1);
  waits.mutable_scheduling()->add_depends_on(job);
  Do(JobSubmitted{.spec = waits});
  absl::Status refused = Delete(job);
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_JOB_NEEDED);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("jobs/2 depends on it"));
  Do(JobCancelled{"jobs/2"});
  v1::JobSpec fork = Spec(1);
  fork.mutable_checkpoint()->set_resume_from("checkpoints/4");
  Do(JobSubmitted{.spec = fork});
  refused = Delete(job, {"checkpoints/4"});
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_JOB_NEEDED);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("jobs/3 is to begin with its checkp"));
  EXPECT_TRUE(Delete(job, {"checkpoints/5"}).ok());
  // One that has not run and waited for it cannot be resumed.
  EXPECT_FALSE(Do(JobResumed{"jobs/2"}).status.ok());
}

// Also those of the same decision.
TEST_F(JobDeletionTest, WhoComesInTheSameDecisionIsHeard) {
  const std::string job = Ended();
  v1::JobSpec waits = Spec(1);
  waits.mutable_scheduling()->add_depends_on(job);
  const JobSubmitted submitted = {.spec = waits};
  const Outcome before = DecideAll(state, {submitted, JobDeleted{job}}, now, config);
  EXPECT_TRUE(before.results[0].status.ok());
  EXPECT_EQ(ReasonOf(before.results[1].status), v1::ERROR_REASON_JOB_NEEDED);
  const Outcome after =
      DecideAll(state, {JobDeleted{job}, submitted, JobResumed{job}, JobDeleted{job}}, now, config);
  EXPECT_TRUE(after.results[0].status.ok());
  for (int i = 1; i < 4; ++i) EXPECT_FALSE(after.results[i].status.ok()) << i;
  EXPECT_THAT(after.jobs, IsEmpty());
}

TEST_F(JobDeletionTest, WhatDependedOnItAndHasRunIsResumedAllTheSame) {
  Connect("a", 1);
  const std::string first = Submit(1);
  v1::JobSpec spec = Spec(1);
  spec.mutable_scheduling()->add_depends_on(first);
  const std::string second = Do(JobSubmitted{.spec = spec}).job;
  for (const std::string& job : {first, second}) {
    ReportAll(job, v1::RANK_STATE_RUNNING);
    ReportAll(job, v1::RANK_STATE_SUCCEEDED);
  }
  ASSERT_EQ(Job(second).state(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_TRUE(Delete(first).ok());
  const Outcome resumed = Do(JobResumed{.job = second, .new_steps = 200});
  EXPECT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_THAT(Job(second).spec().scheduling().depends_on(), IsEmpty());
}

TEST_F(JobDeletionTest, TheRestOfAnArrayIsCancelledWithoutIt) {
  JobArraySubmitted array;
  for (int i = 0; i < 3; ++i) {
    JobSubmitted job = {.spec = Spec(1)};
    job.array.emplace();
    array.jobs.push_back(std::move(job));
  }
  Do(array);
  Do(JobCancelled{"jobs/1"});
  ASSERT_TRUE(Delete("jobs/1").ok());
  EXPECT_EQ(state.FindOfArray("arrays/1")->job().name(), "jobs/2");
  EXPECT_TRUE(Do(JobArrayCancelled{"arrays/1"}).status.ok());
  EXPECT_EQ(Job("jobs/3").state(), v1::JOB_STATE_CANCELLED);
  ASSERT_TRUE(Delete("jobs/2").ok());
  ASSERT_TRUE(Delete("jobs/3").ok());
  EXPECT_EQ(ReasonOf(Do(JobArrayCancelled{"arrays/1"}).status), v1::ERROR_REASON_ARRAY_NOT_FOUND);
}

TEST_F(JobDeletionTest, ItsRequestIdIsForgotten) {
  const JobSubmitted submitted = {.request_id = "r", .spec = Spec(1)};
  const std::string job = Do(submitted).job;
  Do(JobCancelled{job});
  ASSERT_TRUE(Delete(job).ok());
  EXPECT_EQ(state.FindRequest("r"), 0);
  EXPECT_EQ(Do(submitted).job, "jobs/2");
}

TEST_F(JobDeletionTest, ItsRequestIdIsForgottenInTheSameDecision) {
  const JobSubmitted submitted = {.request_id = "r", .spec = Spec(1)};
  const std::string job = Do(submitted).job;
  Do(JobCancelled{job});
  const Outcome outcome =
      DecideAll(state, std::vector<Event>{JobDeleted{job, {}}, submitted}, now, config);
  ASSERT_EQ(outcome.results.size(), 2u);
  EXPECT_TRUE(outcome.results[0].status.ok()) << outcome.results[0].status;
  EXPECT_EQ(outcome.results[1].job, "jobs/2");
  Apply(outcome);
  EXPECT_EQ(state.FindJob(1), nullptr);
  EXPECT_EQ(state.FindRequest("r"), 2);
}

}  // namespace
}  // namespace milepost::coordinator
