// Arrays of jobs, and what of a job can be changed besides its scheduling.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error_details.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class ArrayTest : public ::testing::Test, public FakeCluster {
 protected:
  void TearDown() override { EXPECT_EQ(violation, ""); }

  static JobArraySubmitted Array(int size, int max_parallel = 0) {
    JobArraySubmitted event;
    for (int i = 0; i < size; ++i) {
      JobSubmitted job = {.spec = Spec(1)};
      job.array.emplace();
      job.array->set_index(i);
      job.array->set_max_parallel(max_parallel);
      event.jobs.push_back(std::move(job));
    }
    return event;
  }
  int InState(v1::JobState wanted) const {
    int count = 0;
    for (const auto& [number, record] : state.jobs()) count += record.job().state() == wanted;
    return count;
  }
  void Finish(const std::string& job) {
    ReportAll(job, v1::RANK_STATE_RUNNING);
    ReportAll(job, v1::RANK_STATE_SUCCEEDED);
  }
};

TEST_F(ArrayTest, IsOneDecision) {
  Submit(1);
  const Outcome outcome = Do(Array(3));
  EXPECT_EQ(outcome.durable_jobs, (std::set<int64_t>{2, 3, 4}));
  EXPECT_EQ(outcome.job, "jobs/2");
  for (int i = 0; i < 3; ++i) {
    const v1::Job job = Job(JobName(2 + i));
    EXPECT_EQ(job.array().name(), "arrays/2");
    EXPECT_EQ(job.array().index(), i);
    EXPECT_EQ(job.array().size(), 3);
    EXPECT_EQ(job.state(), v1::JOB_STATE_QUEUED);
  }
}

// Said again it is the same request; with other contents it is another, which must not be answered
// with the first one's job.
TEST_F(ArrayTest, ARequestIdIsForOneRequest) {
  JobSubmitted job = {.request_id = "a", .spec = Spec(1)};
  job.request_digest = 7;
  Do(job);
  EXPECT_EQ(Decide(state, job, now, config).status, absl::OkStatus());
  job.request_digest = 8;
  EXPECT_EQ(ReasonOf(Decide(state, job, now, config).status), v1::ERROR_REASON_REQUEST_ID_USED);
  job.request_digest = 0;  // of a coordinator that did not know of digests
  EXPECT_EQ(Decide(state, job, now, config).status, absl::OkStatus());
  JobArraySubmitted array = Array(2);
  array.request_id = "b";
  array.request_digest = 1;
  Do(array);
  array.request_digest = 2;
  EXPECT_EQ(ReasonOf(Decide(state, array, now, config).status), v1::ERROR_REASON_REQUEST_ID_USED);
}

// Not one of its jobs to who asked for a job, or the other way round; also within one decision.
TEST_F(ArrayTest, ARequestIdIsForAJobOrForAnArray) {
  JobArraySubmitted array = Array(2);
  array.request_id = "a";
  const JobSubmitted job = {.request_id = "a", .spec = Spec(1)};
  Outcome outcome = DecideAll(state, {array, job}, now, config);
  ASSERT_EQ(outcome.results.size(), 2u);
  EXPECT_EQ(outcome.results[1].status.code(), absl::StatusCode::kAlreadyExists);
  Do(array);
  outcome = Decide(state, job, now, config);
  EXPECT_EQ(ReasonOf(outcome.status), v1::ERROR_REASON_REQUEST_ID_USED);
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("that for arrays/1,"));
  EXPECT_TRUE(outcome.jobs.empty());
  Do(JobSubmitted{.request_id = "j", .spec = Spec(1)});
  array.request_id = "j";
  outcome = Decide(state, array, now, config);
  EXPECT_EQ(ReasonOf(outcome.status), v1::ERROR_REASON_REQUEST_ID_USED);
  EXPECT_TRUE(outcome.jobs.empty());
}

TEST_F(ArrayTest, TheSameRequestGivesTheSameArray) {
  JobArraySubmitted event = Array(3);
  event.request_id = "r";
  EXPECT_EQ(Do(event).job, "jobs/1");
  const Outcome again = Do(event);
  EXPECT_EQ(again.job, "jobs/1");
  EXPECT_TRUE(again.jobs.empty());
  EXPECT_EQ(state.jobs().size(), 3u);
  // Also within one decision.
  event.request_id = "s";
  const std::vector<Event> events = {event, event};
  const Outcome both = DecideAll(state, events, now, config);
  EXPECT_EQ(both.jobs.size(), 3u);
  EXPECT_EQ(both.results[1].job, "jobs/4");
}

TEST_F(ArrayTest, AllOrNothing) {
  JobArraySubmitted event = Array(3);
  event.jobs[2].spec.mutable_scheduling()->set_queue("nowhere");
  const Outcome outcome = Do(event);
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("elements[2]: scheduling.queue"));
  EXPECT_TRUE(outcome.jobs.empty());
  EXPECT_TRUE(state.jobs().empty());
}

TEST_F(ArrayTest, CancelsWhatHasNotEnded) {
  Connect("a", 2);
  const std::string first = Do(Array(4)).job;
  const std::string other = Submit(1);
  Finish("jobs/1");
  EXPECT_TRUE(Do(JobArrayCancelled{"arrays/1"}).status.ok());
  EXPECT_EQ(Job("jobs/1").state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Job("jobs/2").state(), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(Job("jobs/4").state(), v1::JOB_STATE_CANCELLED);
  EXPECT_FALSE(Job(other).cancel_requested());
  EXPECT_TRUE(Do(JobArrayCancelled{"arrays/1"}).status.ok());
  for (const char* none : {"arrays/2", "arrays/5", "arrays/99", "jobs/1", ""}) {
    EXPECT_EQ(Do(JobArrayCancelled{none}).status.code(), absl::StatusCode::kNotFound) << none;
  }
}

TEST_F(ArrayTest, RunsNoMoreThanMayAtATime) {
  Connect("a", 8);
  Do(Array(5, /*max_parallel=*/2));
  EXPECT_EQ(InState(v1::JOB_STATE_STARTING), 2);
  const v1::Job waiting = Job("jobs/3");
  EXPECT_EQ(waiting.reason(), v1::JOB_REASON_ARRAY_LIMIT);
  EXPECT_THAT(waiting.reason_detail(), HasSubstr("2 of its 5 jobs run at a time"));
  const std::string other = Submit(1);
  EXPECT_EQ(Job(other).state(), v1::JOB_STATE_STARTING) << "it holds up nobody else";
  Finish("jobs/2");
  EXPECT_EQ(Job("jobs/3").state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("jobs/4").state(), v1::JOB_STATE_QUEUED);
  Finish("jobs/1");
  Finish("jobs/3");
  EXPECT_EQ(Job("jobs/4").state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("jobs/5").state(), v1::JOB_STATE_STARTING);
}

TEST_F(ArrayTest, OneThatBacksOffKeepsItsPlace) {
  Connect("a", 8);
  Do(Array(2, /*max_parallel=*/1));
  v1::RankReport failed = Report("jobs/1", 0, v1::RANK_STATE_FAILED);
  failed.set_failure_class(v1::FAILURE_CLASS_INTERNAL);
  Send(failed);
  EXPECT_EQ(Job("jobs/1").state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job("jobs/2").state(), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(3));
  EXPECT_EQ(Job("jobs/1").state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("jobs/2").state(), v1::JOB_STATE_QUEUED);
}

TEST_F(ArrayTest, ThoseThatOthersMakeRoomForCount) {
  Connect("a", 2);
  const std::string low = Submit(1);
  const std::string also_low = Submit(1);
  ReportAll(low, v1::RANK_STATE_RUNNING);
  ReportAll(also_low, v1::RANK_STATE_RUNNING);
  JobArraySubmitted event = Array(2, /*max_parallel=*/1);
  for (JobSubmitted& job : event.jobs) job.spec.mutable_scheduling()->set_priority(10);
  Do(event);
  EXPECT_EQ(InState(v1::JOB_STATE_PREEMPTING), 1);
  EXPECT_EQ(Job("jobs/4").reason(), v1::JOB_REASON_ARRAY_LIMIT);
}

class UpdateTest : public ArrayTest {};

TEST_F(UpdateTest, LabelsAreReplaced) {
  JobSubmitted submit = {.spec = Spec(1), .labels = {{"team", "vision"}}};
  const std::string job = Do(submit).job;
  EXPECT_EQ(Job(job).labels().at("team"), "vision");
  JobUpdated update = {.job = job, .scheduling = Job(job).spec().scheduling()};
  Do(update);
  EXPECT_EQ(Job(job).labels_size(), 1) << "not given: left alone";
  update.labels.emplace();
  (*update.labels)["owner"] = "ann";
  const std::string etag = Job(job).etag();
  Do(update);
  EXPECT_EQ(Job(job).labels_size(), 1);
  EXPECT_EQ(Job(job).labels().at("owner"), "ann");
  EXPECT_NE(Job(job).etag(), etag);
}

TEST_F(UpdateTest, AFixedJobBecomesElastic) {
  Connect("a", 2);
  v1::JobSpec spec = Spec(4);
  spec.mutable_train()->mutable_batch()->set_global(8);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  const std::string job = Do(JobSubmitted{.spec = spec}).job;
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_QUEUED);
  JobUpdated update = {.job = job, .scheduling = spec.scheduling()};
  update.bounds.emplace().resources = spec.resources();
  update.bounds->resources.set_min_ranks(2);
  Do(update);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job(job).placements_size(), 2);
}

TEST_F(UpdateTest, AnAttemptGoesOnAsItIs) {
  Connect("a", 4);
  v1::JobSpec spec = Spec(2);
  spec.mutable_train()->mutable_batch()->set_global(8);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_resources()->set_max_ranks(4);
  const std::string job = Do(JobSubmitted{.spec = spec}).job;
  ReportAll(job, v1::RANK_STATE_RUNNING);
  ASSERT_EQ(Job(job).placements_size(), 4);
  JobUpdated update = {.job = job, .scheduling = spec.scheduling()};
  update.bounds.emplace().resources = spec.resources();
  update.bounds->resources.clear_max_ranks();
  Do(update);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job(job).placements_size(), 4);
  EXPECT_EQ(Record(job).sizes_size(), 0);
  // The next one has what it may have now.
  Do(JobSuspended{job});
  ReportAll(job, v1::RANK_STATE_STOPPED);
  Do(JobResumed{.job = job});
  EXPECT_EQ(Job(job).placements_size(), 2);
}

TEST_F(UpdateTest, TheFewestRanksHaveToBeAllowedInTheQueue) {
  v1::Queue queue;
  queue.set_name("queues/small");
  v1::SlotQuota* quota = queue.add_quotas();
  quota->set_device(v1::DEVICE_KIND_CPU);
  quota->set_limit(2);
  ASSERT_TRUE(Do(QueuePut{.queue = queue, .create = true}).status.ok());
  v1::JobSpec spec = Spec(4);
  spec.mutable_scheduling()->set_queue("small");
  spec.mutable_resources()->set_min_ranks(2);
  spec.mutable_train()->mutable_batch()->set_global(4);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  const std::string job = Do(JobSubmitted{.spec = spec}).job;
  ASSERT_NE(job, "");
  JobUpdated update = {.job = job, .scheduling = spec.scheduling()};
  update.bounds.emplace().resources = spec.resources();
  update.bounds->resources.clear_min_ranks();
  EXPECT_EQ(Do(update).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Job(job).spec().resources().has_min_ranks());
}

}  // namespace
}  // namespace milepost::coordinator
