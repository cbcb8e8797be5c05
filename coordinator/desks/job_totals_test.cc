#include "coordinator/desks/job_totals.h"

#include <gtest/gtest.h>

namespace milepost::coordinator {
namespace {

v1::JobRecord Record(const std::string& project, v1::JobState state, size_t bytes) {
  v1::JobRecord record;
  record.mutable_job()->set_project(project);
  record.mutable_job()->set_state(state);
  record.mutable_job()->mutable_spec()->set_name(std::string(bytes, 'x'));
  return record;
}

TEST(JobTotalsTest, CountsEachJobOnceAsItIsNow) {
  JobTotals totals;
  EXPECT_EQ(totals.bytes(), 0u);
  EXPECT_EQ(totals.ActiveOf("p"), 0u);
  const v1::JobRecord first = Record("p", v1::JOB_STATE_QUEUED, 100);
  const v1::JobRecord longer = Record("p", v1::JOB_STATE_RUNNING, 300);
  const v1::JobRecord ended = Record("p", v1::JOB_STATE_FAILED, 200);
  const v1::JobRecord other = Record("", v1::JOB_STATE_QUEUED, 50);
  totals.Stored(1, first);
  totals.Stored(2, other);
  EXPECT_EQ(totals.bytes(), first.ByteSizeLong() + other.ByteSizeLong());
  EXPECT_EQ(totals.waiting(), 2u);
  EXPECT_EQ(totals.running(), 0u);
  totals.Stored(1, longer);
  EXPECT_EQ(totals.waiting(), 1u);
  EXPECT_EQ(totals.running(), 1u);
  EXPECT_EQ(totals.ActiveOf("p"), 1u);
  EXPECT_EQ(totals.ActiveOf("default"), 1u);
  EXPECT_EQ(totals.bytes(), longer.ByteSizeLong() + other.ByteSizeLong());
  totals.Stored(1, ended);
  totals.Stored(1, ended);
  EXPECT_EQ(totals.running(), 0u);
  EXPECT_EQ(totals.ActiveOf("p"), 0u);
  EXPECT_EQ(totals.bytes(), ended.ByteSizeLong() + other.ByteSizeLong());
  totals.Stored(1, longer);  // resumed
  EXPECT_EQ(totals.ActiveOf("p"), 1u);
  totals.Stored(1, Record("p", v1::JOB_STATE_SUSPENDED, 10));
  EXPECT_EQ(totals.running(), 0u);
  totals.Deleted(2);
  EXPECT_EQ(totals.waiting(), 0u);
}

}  // namespace
}  // namespace milepost::coordinator
