#include "coordinator/core/clock_bounds.h"

#include <gtest/gtest.h>

#include "common/incarnation.h"
#include "common/proto_time.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kMinute = absl::Minutes(1);

class ClockBoundsTest : public ::testing::Test {
 protected:
  const absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  const Config config_ = {};
};

// Stored by a clock that is hours ahead, or behind.
TEST_F(ClockBoundsTest, NothingIsDueLaterThanItEverCanBe) {
  v1::JobRecord record;
  const auto late = ToProto(now_ + absl::Hours(5));
  *record.mutable_stop_deadline() = *record.mutable_resize_after() = late;
  *record.mutable_attempt_start_time() = late;
  *record.mutable_job()->mutable_next_attempt_time() = late;
  EXPECT_TRUE(BoundTimes(now_, config_, &record));
  EXPECT_EQ(FromProto(record.stop_deadline()), now_ + config_.graceful_stop);
  EXPECT_EQ(FromProto(record.resize_after()), now_ + config_.resize_interval);
  EXPECT_EQ(FromProto(record.attempt_start_time()), now_);
  EXPECT_EQ(FromProto(record.job().next_attempt_time()), now_ + config_.backoff_cap);
  EXPECT_FALSE(BoundTimes(now_, config_, &record)) << "once is enough";
}

TEST_F(ClockBoundsTest, RanksThatWereToldToStopHaveALeaseToSaySo) {
  v1::JobRecord record;
  record.add_ranks()->set_stop(v1::STOP_KIND_GRACEFUL);
  *record.mutable_stop_deadline() = ToProto(now_ - absl::Hours(5));
  EXPECT_TRUE(BoundTimes(now_, config_, &record));
  EXPECT_EQ(FromProto(record.stop_deadline()), now_ + config_.lease);
}

TEST_F(ClockBoundsTest, RanksThatAreToBeKilledHaveTheirTimeToEnd) {
  v1::JobRecord record;
  *record.mutable_stop_deadline() = ToProto(now_ - absl::Hours(5));
  record.add_ranks()->set_stop(v1::STOP_KIND_KILL);
  EXPECT_TRUE(BoundTimes(now_, config_, &record));
  EXPECT_EQ(FromProto(record.stop_deadline()), now_ + config_.lease + config_.kill_wait);
}

TEST_F(ClockBoundsTest, WhatIsPossibleStays) {
  v1::JobRecord record;
  record.add_ranks()->set_stop(v1::STOP_KIND_GRACEFUL);
  EXPECT_FALSE(BoundTimes(now_, config_, &record)) << "unset";
  *record.mutable_stop_deadline() = ToProto(now_ + kMinute);
  *record.mutable_resize_after() = ToProto(now_ + kMinute);
  *record.mutable_attempt_start_time() = ToProto(now_ - kMinute);
  *record.mutable_job()->mutable_next_attempt_time() = ToProto(now_ - kMinute);
  const std::string before = record.SerializeAsString();
  EXPECT_FALSE(BoundTimes(now_, config_, &record));
  EXPECT_EQ(record.SerializeAsString(), before);
}

TEST_F(ClockBoundsTest, ADrainHasNoLongerThanItWasGiven) {
  v1::WorkerRecord record;
  EXPECT_FALSE(BoundTimes(now_, &record));
  v1::Drain* drain = record.mutable_worker()->mutable_drain();
  *drain->mutable_request_time() = ToProto(now_ + absl::Hours(5));
  *drain->mutable_deadline() = ToProto(now_ + absl::Hours(5) + kMinute);
  *record.add_failures()->mutable_time() = ToProto(now_ + absl::Hours(5));
  v1::Exclusion* exclusion = record.mutable_worker()->mutable_exclusion();
  *exclusion->mutable_next_check_time() = ToProto(now_ + absl::Hours(5));
  EXPECT_TRUE(BoundTimes(now_, &record));
  EXPECT_EQ(FromProto(drain->deadline()), now_ + kMinute);
  EXPECT_EQ(FromProto(exclusion->next_check_time()), now_ + kLongestCheckBackoff);
  EXPECT_EQ(FromProto(drain->request_time()), now_);
  EXPECT_EQ(FromProto(record.failures(0).time()), now_);
  // A day was given, an hour of it is over.
  *drain->mutable_request_time() = ToProto(now_ - absl::Hours(1));
  *drain->mutable_deadline() = ToProto(now_ + absl::Hours(23));
  EXPECT_FALSE(BoundTimes(now_, &record));
}

TEST_F(ClockBoundsTest, AWorkerThatIsDownWasHeardInThePast) {
  v1::WorkerRecord record;
  record.mutable_worker()->set_state(v1::WORKER_STATE_DOWN);
  *record.mutable_worker()->mutable_lease_expire_time() = ToProto(now_ + absl::Hours(1000));
  EXPECT_TRUE(BoundTimes(now_, &record));
  EXPECT_EQ(FromProto(record.worker().lease_expire_time()), now_);
}

TEST_F(ClockBoundsTest, AStartOfAWorkerCanBeExceeded) {
  v1::WorkerRecord record;
  record.mutable_worker()->set_incarnation(kMostIncarnation + 1);
  EXPECT_FALSE(BoundTimes(now_, &record));
  record.mutable_worker()->set_incarnation(INT64_MAX);
  EXPECT_TRUE(BoundTimes(now_, &record));
  EXPECT_EQ(record.worker().incarnation(), kMostIncarnation);
}

// The clock of the host that takes over is a day behind: a job whose ranks do not leave is not
// waited for until then.
TEST_F(ClockBoundsTest, AreAppliedToWhatARestartLoads) {
  FakeCluster cluster;
  cluster.now = now_;
  cluster.Connect("a", 1);
  const std::string job = cluster.Submit(1);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Do(JobCancelled{job});
  cluster.Do(WorkerDrained{"workers/a", "test", now_ + kMinute});
  ASSERT_TRUE(cluster.Record(job).has_stop_deadline());
  cluster.now = now_ - absl::Hours(24);
  cluster.Do(CoordinatorRestarted{});
  const absl::Time latest = cluster.now + std::max(config_.graceful_stop, kMinute);
  EXPECT_LE(FromProto(cluster.Record(job).stop_deadline()), latest);
  EXPECT_LE(FromProto(cluster.Worker("a").drain().deadline()), latest);
}

}  // namespace
}  // namespace milepost::coordinator
