#include "coordinator/metrics/cluster_series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string TextOf(const FakeCluster& cluster, const SeriesLimits& limits = {}) {
  Series series;
  CollectState(cluster.state, cluster.now, limits, &series);
  return series.Text();
}

void Progress(FakeCluster* cluster, const std::string& job, const v1::Progress& progress) {
  RankProgressed event;
  event.worker = cluster->Record(job).ranks(0).worker();
  event.progress.set_job(job);
  event.progress.set_generation(cluster->Job(job).generation());
  *event.progress.mutable_progress() = progress;
  cluster->Do(event);
}

TEST(ClusterSeriesTest, TellsOfAJobThatRuns) {
  FakeCluster cluster;
  cluster.Connect("a", 2);
  const std::string job = cluster.Submit(2);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::Progress progress;
  progress.set_step(7);
  progress.set_train_loss(2.5);
  progress.set_validation_loss(std::numeric_limits<double>::quiet_NaN());
  progress.set_tokens_per_second(1000);
  progress.set_step_seconds(0.5);
  progress.set_backward_seconds(0.25);
  progress.set_planned_bytes(4096);
  Progress(&cluster, job, progress);
  const std::string text = TextOf(cluster);
  EXPECT_THAT(text, HasSubstr(absl::StrCat("milepost_job_info{job_id=\"", job, "\"")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("milepost_job_ranks{job_id=\"", job, "\"} 2\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("milepost_job_step{job_id=\"", job, "\"} 7\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("milepost_job_train_loss{job_id=\"", job, "\"} 2.5\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("milepost_job_step_part_seconds{job_id=\"", job,
                                           "\",part=\"backward\"} 0.25\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("milepost_job_memory_bytes{job_id=\"", job,
                                           "\",kind=\"planned\"} 4096\n")));
  EXPECT_THAT(text, Not(HasSubstr("milepost_job_validation_loss")));
  EXPECT_THAT(text, Not(HasSubstr("milepost_job_loss_scale")));
  EXPECT_THAT(text,
              HasSubstr("milepost_slots_held{device=\"cpu\",device_model=\"\",pool=\"\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("milepost_slots_free{device=\"cpu\",device_model=\"\",pool=\"\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("milepost_workers{state=\"READY\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_workers{state=\"DOWN\"} 0\n"));
}

TEST(ClusterSeriesTest, AJobThatHasEndedHasNoSeries) {
  FakeCluster cluster;
  cluster.Connect("a", 1);
  const std::string job = cluster.Submit(1);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  cluster.ReportAll(job, v1::RANK_STATE_SUCCEEDED);
  ASSERT_EQ(cluster.Job(job).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(TextOf(cluster), Not(HasSubstr(job)));
}

TEST(ClusterSeriesTest, SlotsAreWantedForWholeGangs) {
  FakeCluster cluster;
  cluster.Connect("a", 4);
  cluster.Submit(3);  // runs; one slot is left
  cluster.Submit(2);
  cluster.Submit(8);
  cluster.Advance(absl::Seconds(3));
  const std::string text = TextOf(cluster);
  EXPECT_THAT(text,
              HasSubstr("milepost_slots_wanted{device=\"cpu\",device_model=\"\",pool=\"\"} 10\n"));
  EXPECT_THAT(text,
              HasSubstr("milepost_slots_held{device=\"cpu\",device_model=\"\",pool=\"\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("milepost_queue_oldest_wait_seconds{queue=\"default\"} 3\n"));
}

TEST(ClusterSeriesTest, SlotsAreWantedOfThePoolThatAJobAsksFor) {
  FakeCluster cluster;
  v1::Hello hello = FakeCluster::MakeHello("a", 2, 1);
  (*hello.mutable_labels())["pool"] = "left";
  cluster.Do(WorkerHello{hello});
  cluster.Connect("b", 1);
  const auto submit = [&](const std::string& pool, int ranks) {
    JobSubmitted event{.spec = FakeCluster::Spec(ranks)};
    event.spec.mutable_resources()->set_pool(pool);
    cluster.Do(event);
  };
  submit("left", 1);  // runs
  submit("left", 4);
  submit("right", 3);  // which has no workers yet
  submit("", 5);
  const std::string text = TextOf(cluster);
  const auto has = [&](const std::string& name, const std::string& pool, int value) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat(name, "{device=\"cpu\",device_model=\"\",pool=\"",
                                             pool, "\"} ", value, "\n")));
  };
  has("milepost_slots_usable", "left", 2);
  has("milepost_slots_free", "left", 1);
  has("milepost_slots_held", "left", 1);
  has("milepost_slots_held", "", 0);
  has("milepost_slots_wanted", "left", 4);
  has("milepost_slots_wanted", "right", 3);
  has("milepost_slots_wanted", "", 5);
}

// Jobs may ask for any number of pools. What workers have is never left out.
TEST(ClusterSeriesTest, OnlySoManyPoolsThatJobsAskForHaveSeries) {
  FakeCluster cluster;
  v1::Hello hello = FakeCluster::MakeHello("a", 1, 1);
  (*hello.mutable_labels())["pool"] = "there";
  cluster.Do(WorkerHello{hello});
  for (const char* pool : {"a", "b", "c", "there"}) {
    JobSubmitted event{.spec = FakeCluster::Spec(2)};
    event.spec.mutable_resources()->set_pool(pool);
    cluster.Do(event);
  }
  const std::string text = TextOf(cluster, {.pools = 2});
  EXPECT_THAT(text, HasSubstr("pool=\"b\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("pool=\"c\"}")));
  EXPECT_THAT(
      text,
      HasSubstr("milepost_slots_wanted{device=\"cpu\",device_model=\"\",pool=\"there\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("milepost_series_left_out{of=\"pools\"} 1\n"));
}

// More slots would not start it: no host is to be bought for it.
TEST(ClusterSeriesTest, WhatAQueuesLimitForbidsIsNotWanted) {
  FakeCluster cluster;
  cluster.Connect("a", 1);
  QueuePut put;
  put.queue.set_name("queues/default");
  put.queue.set_weight(1);
  v1::SlotQuota* quota = put.queue.add_quotas();
  quota->set_device(v1::DEVICE_KIND_CPU);
  quota->set_limit(5);
  put.allow_missing = true;
  ASSERT_TRUE(cluster.Do(put).status.ok());
  cluster.Submit(2);
  cluster.Submit(2);
  cluster.Submit(2);
  const std::string text = TextOf(cluster);
  EXPECT_THAT(text,
              HasSubstr("milepost_slots_wanted{device=\"cpu\",device_model=\"\",pool=\"\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("milepost_queue_slots_limit{queue=\"default\",device=\"cpu\"} 5\n"));
}

TEST(ClusterSeriesTest, JoinsGpusWithTheRanksThatTheyHave) {
  FakeCluster cluster;
  v1::Hello hello = FakeCluster::MakeGpuHello("a", {"NVIDIA H100", "NVIDIA H100"});
  hello.set_host("gpu-1");
  hello.mutable_slots(0)->set_uuid("GPU-0");
  hello.mutable_slots(1)->set_uuid("GPU-1");
  v1::DeviceFacts* facts = hello.add_devices();
  facts->set_slot(0);
  facts->set_utilization_percent(50);
  facts->set_last_xid(79);
  ASSERT_TRUE(cluster.Do(WorkerHello{hello}).status.ok());
  const std::string job = cluster.Submit(1, v1::DEVICE_KIND_CUDA);
  const std::string text = TextOf(cluster);
  EXPECT_THAT(text, HasSubstr(absl::StrCat("milepost_gpu_info{worker=\"workers/a\",host=\"gpu-1\","
                                           "slot=\"0\",uuid=\"GPU-0\",device_model=\"NVIDIA H100\","
                                           "job_id=\"",
                                           job, "\",rank=\"0\"} 1\n")));
  EXPECT_THAT(text,
              HasSubstr("uuid=\"GPU-1\",device_model=\"NVIDIA H100\",job_id=\"\",rank=\"\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_gpu_utilization_ratio{uuid=\"GPU-0\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("milepost_gpu_last_xid{uuid=\"GPU-0\"} 79\n"));
  EXPECT_THAT(text, Not(HasSubstr("milepost_gpu_power_watts")));  // it did not tell
}

TEST(ClusterSeriesTest, SaysWhatItLeavesOut) {
  FakeCluster cluster;
  cluster.Connect("a", 3);
  for (int i = 0; i < 3; ++i) cluster.Submit(1);
  v1::Hello hello = FakeCluster::MakeGpuHello("b", {"H100", "H100"});
  hello.mutable_slots(0)->set_uuid("GPU-0");
  hello.mutable_slots(1)->set_uuid("GPU-1");
  cluster.Do(WorkerHello{hello});
  const std::string text = TextOf(cluster, {.jobs = 2, .workers = 1, .gpus = 1});
  EXPECT_THAT(text, HasSubstr("milepost_series_left_out{of=\"jobs\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_series_left_out{of=\"workers\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_series_left_out{of=\"gpus\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("job_id=\"jobs/2\""));
  EXPECT_THAT(text, Not(HasSubstr("job_id=\"jobs/3\"")));
}

}  // namespace
}  // namespace milepost::coordinator
