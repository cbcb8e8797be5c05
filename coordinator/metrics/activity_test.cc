#include "coordinator/metrics/activity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto_time.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string TextOf(const Activity& activity) {
  Series series;
  activity.Collect(&series);
  return series.Text();
}

v1::JobRecord Record(v1::JobState state) {
  v1::JobRecord record;
  record.mutable_job()->set_name("jobs/1");
  record.mutable_job()->set_state(state);
  *record.mutable_job()->mutable_create_time() = ToProto(absl::FromUnixSeconds(100));
  return record;
}

TEST(ActivityTest, CountsAJobsLife) {
  Activity activity;
  const v1::JobRecord queued = Record(v1::JOB_STATE_QUEUED);
  v1::JobRecord running = Record(v1::JOB_STATE_RUNNING);
  running.mutable_job()->set_attempts(1);
  *running.mutable_job()->mutable_start_time() = ToProto(absl::FromUnixSeconds(130));
  v1::JobRecord failed = running;
  failed.mutable_job()->set_failures(1);
  failed.mutable_job()->mutable_first_failure()->set_class_(v1::FAILURE_CLASS_DEVICE);
  v1::JobRecord preempted = failed;
  preempted.mutable_job()->set_preemptions(1);
  v1::JobRecord ended = preempted;
  ended.mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
  activity.JobChanged(nullptr, queued);
  activity.JobChanged(&queued, running);
  activity.JobChanged(&running, failed);
  activity.JobChanged(&failed, preempted);
  activity.JobChanged(&preempted, ended);
  activity.JobChanged(&ended, ended);
  const std::string text = TextOf(activity);
  EXPECT_THAT(text, HasSubstr("milepost_jobs_submitted_total{queue=\"default\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_attempts_started_total 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_attempts_failed_total{class=\"DEVICE\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_attempts_failed_total{class=\"NETWORK\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("milepost_preemptions_total{queue=\"default\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("milepost_jobs_ended_total{queue=\"default\",state=\"SUCCEEDED\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_job_wait_seconds_sum{queue=\"default\"} 30\n"));
  EXPECT_THAT(text, HasSubstr("milepost_job_wait_seconds_bucket{queue=\"default\",le=\"60\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_job_wait_seconds_bucket{queue=\"default\",le=\"10\"} 0\n"));
}

TEST(ActivityTest, CountsWritesAndCalls) {
  Activity activity;
  activity.Decided(absl::Milliseconds(3));
  activity.Scheduled(absl::Milliseconds(3));
  activity.Wrote(absl::Milliseconds(20), true);
  activity.Wrote(absl::Milliseconds(20), false);
  activity.Called("JobService/GetJob", absl::StatusCode::kOk, absl::Milliseconds(1));
  activity.Called("JobService/GetJob", absl::StatusCode::kNotFound, absl::Milliseconds(1));
  const std::string text = TextOf(activity);
  EXPECT_THAT(text, HasSubstr("milepost_store_write_failures_total 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_store_write_duration_seconds_bucket{le=\"0.025\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("milepost_decision_duration_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_scheduling_duration_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_rpc_calls_total{code=\"NOT_FOUND\","
                              "method=\"JobService/GetJob\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("milepost_rpc_duration_seconds_count{method=\"JobService/GetJob\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("SUCCEEDED")));
}

}  // namespace
}  // namespace milepost::coordinator
