#include "coordinator/core/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class StragglersTest : public testing::Test {
 protected:
  StragglersTest() { cluster_.config.lease = absl::Hours(10); }

  std::string Run(const v1::JobSpec& spec) {
    const std::string job = cluster_.Do(JobSubmitted{.spec = spec}).job;
    cluster_.ReportAll(job, v1::RANK_STATE_RUNNING);
    return job;
  }

  // A step of every rank; `own`: their seconds without the wait for the slowest.
  void Step(const std::string& job, std::vector<double> own) {
    ++step_;
    const double step = *std::max_element(own.begin(), own.end());
    cluster_.now += absl::Seconds(step);
    const int64_t generation = cluster_.Job(job).generation();
    for (size_t rank = 0; rank < own.size(); ++rank) {
      if (cluster_.Job(job).generation() != generation) return;
      if (cluster_.Record(job).ranks_size() == 0) return;
      v1::RankProgress progress;
      progress.set_job(job);
      progress.set_generation(generation);
      progress.set_rank(static_cast<int>(rank));
      progress.mutable_progress()->set_step(step_);
      progress.mutable_progress()->set_step_seconds(step);
      progress.mutable_progress()->set_communication_wait_seconds(step - own[rank]);
      cluster_.Do(RankProgressed{cluster_.Record(job).ranks(rank).worker(), progress});
    }
  }

  FakeCluster cluster_;
  int64_t step_ = 0;
};

TEST_F(StragglersTest, ARankThatIsPersistentlySlowerIsNamed) {
  cluster_.Connect("a", 2);
  cluster_.Connect("b", 2);
  const std::string job = Run(FakeCluster::Spec(4));
  for (int i = 0; i < 20; ++i) Step(job, {10, 10, 10.5, 10});
  EXPECT_EQ(cluster_.Job(job).stragglers_size(), 0) << "that is noise";
  // One slow step is none, however slow.
  Step(job, {10, 10, 300, 10});
  for (int i = 0; i < 20; ++i) {
    Step(job, {10, 10, 10, 10});
    EXPECT_EQ(cluster_.Job(job).stragglers_size(), 0);
  }
  for (int i = 0; i < 40; ++i) Step(job, {10, 10, 10, 16});
  ASSERT_EQ(cluster_.Job(job).stragglers_size(), 1);
  const v1::Straggler straggler = cluster_.Job(job).stragglers(0);
  EXPECT_EQ(straggler.rank(), 3);
  EXPECT_EQ(straggler.worker(), cluster_.Record(job).ranks(3).worker());
  EXPECT_NEAR(straggler.ratio(), 1.6, 0.05);
  EXPECT_EQ(cluster_.Job(job).state(), v1::JOB_STATE_RUNNING) << "it only says so";
  for (int i = 0; i < 30; ++i) Step(job, {10, 10, 10, 10});
  EXPECT_EQ(cluster_.Job(job).stragglers_size(), 0);
}

TEST_F(StragglersTest, OneOfTwoIsFound) {
  cluster_.Connect("a", 2);
  const std::string job = Run(FakeCluster::Spec(2));
  for (int i = 0; i < 20; ++i) Step(job, {20, 10});
  Step(job, {20, 10});
  ASSERT_EQ(cluster_.Job(job).stragglers_size(), 1);
  EXPECT_EQ(cluster_.Job(job).stragglers(0).rank(), 0);
}

TEST_F(StragglersTest, WhatEachRankUsesIsKnownWhileItRuns) {
  cluster_.Connect("a", 2);
  const std::string job = Run(FakeCluster::Spec(2));
  Step(job, {20, 10});
  v1::RankProgress told;
  told.set_job(job);
  told.set_generation(cluster_.Job(job).generation());
  told.set_rank(1);
  told.mutable_progress()->set_step(++step_);
  told.mutable_progress()->set_step_seconds(7);
  told.mutable_progress()->set_planned_bytes(100);
  told.mutable_progress()->set_allocated_bytes(101);
  told.mutable_progress()->set_required_bytes(120);
  told.mutable_progress()->set_peak_resident_bytes(130);
  const std::string worker = cluster_.Record(job).ranks(1).worker();
  cluster_.Do(RankProgressed{worker, told});
  const v1::Job known = DescribeInFull(cluster_.state, cluster_.Record(job));
  ASSERT_EQ(known.rank_stats_size(), 2);
  EXPECT_EQ(known.rank_stats(0).step(), 1);
  const v1::RankStats& stats = known.rank_stats(1);
  EXPECT_EQ(stats.rank(), 1);
  EXPECT_EQ(stats.step(), 2);
  EXPECT_EQ(stats.own_seconds(), 7);
  EXPECT_EQ(stats.planned_bytes(), 100);
  EXPECT_EQ(stats.allocated_bytes(), 101);
  EXPECT_EQ(stats.required_bytes(), 120);
  EXPECT_EQ(stats.peak_resident_bytes(), 130);
  told.mutable_progress()->set_step(1);
  told.mutable_progress()->set_peak_resident_bytes(1);
  cluster_.Do(RankProgressed{worker, told});
  EXPECT_EQ(DescribeInFull(cluster_.state, cluster_.Record(job)).rank_stats(1).step(), 2)
      << "it was told before";
  cluster_.ReportAll(job, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(DescribeInFull(cluster_.state, cluster_.Record(job)).rank_stats_size(), 0);
}

TEST_F(StragglersTest, ARankAloneHoldsUpNobody) {
  cluster_.Connect("a", 1);
  const std::string job = Run(FakeCluster::Spec(1));
  // Each step is slower than the mean of those before it.
  for (double seconds = 10; seconds < 7000; seconds *= 1.3) Step(job, {seconds});
  EXPECT_EQ(cluster_.Job(job).stragglers_size(), 0);
}

TEST_F(StragglersTest, IsReplacedWhereTheJobWantsIt) {
  cluster_.Connect("a", 1);
  cluster_.Connect("b", 1);
  v1::JobSpec spec = FakeCluster::Spec(2);
  spec.mutable_restart()->set_replace_stragglers(true);
  const std::string job = Run(spec);
  cluster_.Connect("c", 1);
  const std::string slow = cluster_.Record(job).ranks(1).worker();
  for (int i = 0; i < 20; ++i) Step(job, {10, 20});
  EXPECT_EQ(cluster_.Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(cluster_.Job(job).reason(), v1::JOB_REASON_STRAGGLER);
  EXPECT_THAT(cluster_.Job(job).reason_detail(), HasSubstr("2.00 times as long"));
  cluster_.ReportAll(job, v1::RANK_STATE_STOPPED);
  ASSERT_EQ(cluster_.Record(job).ranks_size(), 2);
  EXPECT_FALSE(HasRankOn(cluster_.Record(job), slow));
  EXPECT_EQ(cluster_.Job(job).failures(), 0);
}

// Otherwise it would go away and come back for ever.
TEST_F(StragglersTest, IsReplacedOnceWhereThereIsNoOtherHost) {
  cluster_.Connect("a", 1);
  cluster_.Connect("b", 1);
  v1::JobSpec spec = FakeCluster::Spec(2);
  spec.mutable_restart()->set_replace_stragglers(true);
  const std::string job = Run(spec);
  for (int i = 0; i < 20; ++i) Step(job, {10, 20});
  EXPECT_EQ(cluster_.Job(job).reason(), v1::JOB_REASON_STRAGGLER);
  cluster_.ReportAll(job, v1::RANK_STATE_STOPPED);
  cluster_.ReportAll(job, v1::RANK_STATE_RUNNING);
  ASSERT_EQ(cluster_.Job(job).state(), v1::JOB_STATE_RUNNING);
  const int slow = cluster_.Record(job).ranks(0).worker() == "workers/b" ? 0 : 1;
  for (int i = 0; i < 20; ++i) Step(job, {slow == 0 ? 20.0 : 10.0, slow == 1 ? 20.0 : 10.0});
  EXPECT_EQ(cluster_.Job(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster_.Job(job).stragglers_size(), 1) << "it still says so";
}

// What it has seen before a restart of the coordinator says nothing of now.
TEST_F(StragglersTest, AreNotStored) {
  cluster_.Connect("a", 2);
  const std::string job = Run(FakeCluster::Spec(2));
  for (int i = 0; i < 8; ++i) Step(job, {20, 10});
  State stored;
  for (const auto& [number, record] : cluster_.state.jobs()) stored.PutJob(record);
  for (const auto& [name, record] : cluster_.state.workers()) stored.PutWorker(record);
  cluster_.state = stored;
  cluster_.now += absl::Hours(1);
  cluster_.Do(CoordinatorRestarted{});
  for (int i = 0; i < 8; ++i) Step(job, {10, 10});
  EXPECT_EQ(cluster_.Job(job).stragglers_size(), 0);
}

TEST_F(StragglersTest, EventsTellWhatHappened) {
  cluster_.Connect("a", 2);
  const std::string job = Run(FakeCluster::Spec(2));
  cluster_.Do(JobSuspended{job});
  cluster_.ReportAll(job, v1::RANK_STATE_STOPPED);
  const auto events = [&] {
    std::vector<v1::JobState> states;
    for (const v1::JobEvent& event : cluster_.Record(job).events()) states.push_back(event.state());
    return states;
  };
  EXPECT_THAT(events(), testing::ElementsAre(v1::JOB_STATE_QUEUED, v1::JOB_STATE_STARTING,
                                             v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUSPENDING,
                                             v1::JOB_STATE_SUSPENDED));
  for (int i = 0; i < 40; ++i) {
    cluster_.Do(JobResumed{.job = job});
    cluster_.Do(JobSuspended{job});
    cluster_.ReportAll(job, v1::RANK_STATE_STOPPED);
  }
  EXPECT_EQ(cluster_.Record(job).events_size(), 50);
  EXPECT_GT(cluster_.Record(job).events_left_out(), 0);
  EXPECT_EQ(events()[2], v1::JOB_STATE_RUNNING) << "the first ones stay";
}

// The step at which the next attempt begins says how much of the one before counts.
TEST_F(StragglersTest, StepsThatWereKeptInMemoryAreProductive) {
  cluster_.Connect("a", 1);
  for (const int64_t start : {60, 100}) {
    const std::string job = Run(FakeCluster::Spec(1));
    cluster_.Do(CheckpointsChanged{job, "checkpoints/1", 50});
    const auto report = [&](int64_t step, int64_t from, double seconds) {
      v1::RankProgress progress;
      progress.set_job(job);
      progress.set_generation(cluster_.Job(job).generation());
      progress.mutable_progress()->set_step(step);
      progress.mutable_progress()->set_start_step(from);
      progress.mutable_progress()->set_productive_seconds(seconds);
      cluster_.Do(RankProgressed{"workers/a", progress});
    };
    report(100, 0, 200);
    v1::RankReport failed = cluster_.Report(job, 0, v1::RANK_STATE_FAILED);
    failed.set_failure_class(v1::FAILURE_CLASS_INTERNAL);
    cluster_.Send(failed);
    EXPECT_NEAR(cluster_.Job(job).productive_seconds(), 100, 1e-9) << "the checkpoint's, for now";
    cluster_.Advance(absl::Seconds(5));
    report(start + 1, start, 2);
    EXPECT_NEAR(cluster_.Job(job).productive_seconds(), 2.0 * static_cast<double>(start) + 2, 1e-9);
    // That is lost as well, and more: back to the checkpoint.
    failed.set_generation(cluster_.Job(job).generation());
    cluster_.Send(failed);
    cluster_.Advance(absl::Seconds(5));
    report(51, 50, 3);
    EXPECT_NEAR(cluster_.Job(job).productive_seconds(), 100 + 3, 1e-9);
    cluster_.Do(JobCancelled{job});
    cluster_.ReportAll(job, v1::RANK_STATE_STOPPED);
  }
}

}  // namespace
}  // namespace milepost::coordinator
