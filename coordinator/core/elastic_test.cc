// Elastic jobs: how many ranks they start with, when they grow and shrink, and what that costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/sizes.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

// global 8, micro 1: 1, 2, 4 and 8 ranks are possible.
v1::JobSpec Elastic(int least, int ranks, int most) {
  v1::JobSpec spec = FakeCluster::Spec(ranks);
  spec.mutable_train()->mutable_batch()->set_global(8);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_train()->mutable_batch()->set_accumulation(8 / ranks);
  spec.mutable_resources()->set_min_ranks(least);
  spec.mutable_resources()->set_max_ranks(most);
  return spec;
}

std::string Submit(FakeCluster& cluster, const v1::JobSpec& spec) {
  return cluster.Do(JobSubmitted{.spec = spec}).job;
}

int Ranks(const FakeCluster& cluster, const std::string& job) {
  return cluster.Record(job).ranks_size();
}

TEST(ElasticTest, StartsWithWhatThereIs) {
  FakeCluster cluster;
  cluster.Connect("a", 3);
  const std::string job = Submit(cluster, Elastic(1, 4, 8));
  EXPECT_EQ(Ranks(cluster, job), 2);
  ASSERT_FALSE(cluster.sent.empty());
  const v1::StartRank& start = cluster.sent.back().message.start_rank();
  EXPECT_EQ(start.world(), 2);
  EXPECT_EQ(start.spec().resources().ranks(), 2);
  EXPECT_EQ(start.spec().train().batch().accumulation(), 4) << "the global batch stays";
}

TEST(ElasticTest, WaitsForItsLeast) {
  FakeCluster cluster;
  cluster.Connect("a", 3);
  const std::string job = Submit(cluster, Elastic(4, 4, 8));
  EXPECT_EQ(Ranks(cluster, job), 0);
  EXPECT_THAT(cluster.Job(job).reason_detail(), HasSubstr("needs 4"));
}

TEST(ElasticTest, TakesMoreThanUsualOnlyWhereItIsAlone) {
  FakeCluster cluster;
  cluster.Connect("a", 8);
  const std::string alone = Submit(cluster, Elastic(1, 2, 8));
  EXPECT_EQ(Ranks(cluster, alone), 8);
  FakeCluster shared;
  const std::string first = Submit(shared, Elastic(1, 2, 8));
  const std::string second = shared.Submit(3);
  shared.Connect("a", 8);
  EXPECT_EQ(Ranks(shared, first), 2);
  EXPECT_EQ(Ranks(shared, second), 3);
}

TEST(ElasticTest, GrowsAtAStepBoundaryAtNoCost) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("a", 2);
  const std::string job = Submit(cluster, Elastic(1, 2, 4));
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Connect("b", 2);
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RUNNING) << "it has just started";
  EXPECT_EQ(NextDeadline(cluster.state), cluster.now + cluster.config.resize_interval);
  cluster.Clear();
  cluster.Advance(cluster.config.resize_interval);
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RESIZING);
  EXPECT_THAT(cluster.Job(job).reason_detail(), HasSubstr("with 4 ranks instead of 2"));
  ASSERT_EQ(cluster.Count(&v1::CoordinatorMessage::has_stop_rank), 2);
  EXPECT_TRUE(cluster.sent.front().message.stop_rank().graceful());
  cluster.ReportAll(job, v1::RANK_STATE_STOPPED);
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Ranks(cluster, job), 4);
  EXPECT_EQ(cluster.Job(job).failures(), 0);
  EXPECT_EQ(cluster.violation, "");
}

TEST(ElasticTest, DoesNotGrowIntoSlotsThatAnotherWaitsFor) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("a", 2);
  const std::string job = Submit(cluster, Elastic(1, 2, 4));
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  const std::string waits = cluster.Submit(3);
  cluster.Connect("b", 2);
  cluster.Connect("c", 1);
  EXPECT_EQ(Ranks(cluster, waits), 3);
  const std::string waits_too = cluster.Submit(3);
  cluster.Connect("d", 2);
  cluster.Advance(cluster.config.resize_interval);
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RUNNING);
  cluster.Do(JobCancelled{waits_too});
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RESIZING) << "nobody waits any more";
}

TEST(ElasticTest, GoesOnWithTheRestWhenAHostIsLost) {
  FakeCluster cluster;
  cluster.Connect("a", 2);
  cluster.Connect("b", 2);
  const std::string job = Submit(cluster, Elastic(1, 4, 4));
  ASSERT_EQ(Ranks(cluster, job), 4);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Clear();
  cluster.Do(WorkerStreamLost{"workers/b"});
  cluster.now += cluster.config.lease - absl::Seconds(1);
  cluster.Do(WorkerHeartbeat{"workers/a"});
  cluster.Advance(absl::Seconds(1));
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RECOVERING);
  ASSERT_GE(cluster.Count(&v1::CoordinatorMessage::has_stop_rank), 2);
  EXPECT_TRUE(cluster.sent.front().message.stop_rank().abort()) << "their state may be of use";
  for (int rank = 0; rank < Ranks(cluster, job); ++rank) {
    if (cluster.Record(job).ranks(rank).gone()) continue;
    v1::RankReport report = cluster.Report(job, rank, v1::RANK_STATE_FAILED);
    report.set_peer_lost(true);
    cluster.Send(report);
  }
  cluster.Advance(absl::Seconds(2));
  EXPECT_EQ(Ranks(cluster, job), 2) << cluster.Job(job).reason_detail();
  EXPECT_EQ(cluster.Job(job).first_failure().class_(), v1::FAILURE_CLASS_HOST);
}

TEST(ElasticTest, RanksThatDoNotAbortAreKilled) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("a", 2);
  const std::string job = cluster.Submit(2);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::RankReport report = cluster.Report(job, 0, v1::RANK_STATE_FAILED);
  report.set_failure_class(v1::FAILURE_CLASS_INTERNAL);
  cluster.Send(report);
  cluster.Clear();
  EXPECT_EQ(NextDeadline(cluster.state), cluster.now + cluster.config.abort_stop);
  cluster.Advance(cluster.config.abort_stop);
  ASSERT_EQ(cluster.Count(&v1::CoordinatorMessage::has_stop_rank), 1);
  EXPECT_FALSE(cluster.sent.front().message.stop_rank().abort());
  EXPECT_FALSE(cluster.sent.front().message.stop_rank().graceful());
}

TEST(ElasticTest, ShrinksForAJobOfHigherPriority) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("a", 4);
  const std::string job = Submit(cluster, Elastic(1, 4, 4));
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::JobSpec urgent = FakeCluster::Spec(2);
  urgent.mutable_scheduling()->set_priority(5);
  const std::string winner = Submit(cluster, urgent);
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_PREEMPTING);
  cluster.ReportAll(job, v1::RANK_STATE_STOPPED);
  EXPECT_EQ(Ranks(cluster, winner), 2);
  EXPECT_EQ(Ranks(cluster, job), 2) << "it goes on with what is left";
}

// What one pass tells it the next one must give it, whoever waits for something else.
TEST(ElasticTest, AGrowthEndsWithMoreRanks) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("a", 2);
  const std::string job = Submit(cluster, Elastic(1, 2, 8));
  const std::string too_large = cluster.Submit(100);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Connect("b", 6);
  cluster.Advance(cluster.config.resize_interval);
  ASSERT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RESIZING);
  cluster.ReportAll(job, v1::RANK_STATE_STOPPED);
  EXPECT_EQ(Ranks(cluster, job), 8);
  EXPECT_EQ(cluster.Job(too_large).state(), v1::JOB_STATE_QUEUED);
}

TEST(ElasticTest, TwoGrowOneAfterTheOther) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  const std::string first = Submit(cluster, Elastic(1, 2, 4));
  const std::string second = Submit(cluster, Elastic(1, 2, 4));
  cluster.Connect("a", 4);
  ASSERT_EQ(Ranks(cluster, first), 2);
  ASSERT_EQ(Ranks(cluster, second), 2);
  for (const std::string& job : {first, second}) cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Connect("b", 4);
  cluster.Advance(cluster.config.resize_interval);
  cluster.ReportAll(first, v1::RANK_STATE_STOPPED);
  cluster.ReportAll(second, v1::RANK_STATE_STOPPED);
  for (const std::string& job : {first, second}) cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Advance(cluster.config.resize_interval);
  for (const std::string& job : {first, second}) {
    if (cluster.Job(job).state() == v1::JOB_STATE_RESIZING) {
      cluster.ReportAll(job, v1::RANK_STATE_STOPPED);
    }
  }
  EXPECT_EQ(Ranks(cluster, first), 4);
  EXPECT_EQ(Ranks(cluster, second), 4);
}

TEST(ElasticTest, OneThatIsNearlyDoneIsLeftAlone) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("a", 4);
  const std::string job = Submit(cluster, Elastic(1, 2, 4));
  ASSERT_EQ(Ranks(cluster, job), 4);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Advance(2 * cluster.config.resize_interval);
  cluster.Send(cluster.Report(job, 0, v1::RANK_STATE_SUCCEEDED));
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RUNNING);
  cluster.ReportAll(job, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(ElasticTest, KeepsAllItsSlotsWhileItWindsUp) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("a", 8);
  const std::string job = Submit(cluster, Elastic(1, 8, 8));
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  const std::string waits = cluster.Submit(4);
  v1::RankReport report = cluster.Report(job, 0, v1::RANK_STATE_FAILED);
  report.set_failure_class(v1::FAILURE_CLASS_INTERNAL);
  cluster.Send(report);
  for (int rank = 1; rank < 8; ++rank) {
    report = cluster.Report(job, rank, v1::RANK_STATE_FAILED);
    report.set_peer_lost(true);
    cluster.Send(report);
    EXPECT_EQ(Ranks(cluster, waits), 0) << "after rank " << rank;
  }
  cluster.Advance(absl::Seconds(2));
  EXPECT_EQ(Ranks(cluster, job), 8);
  EXPECT_EQ(cluster.Job(job).first_failure().rank(), 0);
}

TEST(ElasticTest, SlotsOfADrainingHostDoNotCountForGrowth) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(10);
  cluster.Connect("a", 4);
  const std::string job = Submit(cluster, Elastic(2, 4, 8));
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Connect("b", 4);
  cluster.Do(WorkerDrained{"workers/a", "update", cluster.now + absl::Hours(1)});
  cluster.Advance(cluster.config.resize_interval);
  EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RUNNING);
}

TEST(ElasticTest, ACancelDoesNotPutOffTheKill) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("a", 2);
  const std::string job = cluster.Submit(2);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::RankReport report = cluster.Report(job, 0, v1::RANK_STATE_FAILED);
  report.set_failure_class(v1::FAILURE_CLASS_INTERNAL);
  cluster.Send(report);
  const absl::Time deadline = cluster.now + cluster.config.abort_stop;
  cluster.now += absl::Seconds(5);
  cluster.Do(JobCancelled{job});
  EXPECT_EQ(NextDeadline(cluster.state), deadline);
}

TEST(ElasticTest, ComesBackToTheHostsThatHaveItsState) {
  FakeCluster cluster;
  cluster.config.lease = absl::Hours(1);
  cluster.Connect("b", 2);
  const std::string job = cluster.Submit(2);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.Connect("a", 2);
  for (int rank = 0; rank < 2; ++rank) {
    v1::RankReport report = cluster.Report(job, rank, v1::RANK_STATE_FAILED);
    report.set_failure_class(v1::FAILURE_CLASS_INTERNAL);
    report.set_peer_lost(rank == 1);
    cluster.Send(report);
  }
  cluster.Advance(absl::Seconds(2));
  ASSERT_EQ(Ranks(cluster, job), 2);
  EXPECT_EQ(cluster.Record(job).ranks(0).worker(), "workers/b");
}

}  // namespace
}  // namespace milepost::coordinator
