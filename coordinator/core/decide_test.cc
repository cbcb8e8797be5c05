// Several events in one decision are as good as one after the other.
#include "coordinator/core/decide.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/field_mask_util.h>
#include <gtest/gtest.h>

#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> JobsOf(const Outcome& outcome) {
  std::vector<std::string> jobs;
  for (const EventResult& result : outcome.results) jobs.push_back(result.job);
  return jobs;
}

TEST(DecideAllTest, EventsSeeWhatThoseBeforeThemChanged) {
  FakeCluster cluster;
  const JobSubmitted one{.request_id = "r1", .spec = FakeCluster::Spec(1)};
  const JobSubmitted other{.request_id = "r2", .spec = FakeCluster::Spec(1)};
  const std::vector<Event> events = {one, other, one, JobCancelled{"jobs/2"}, JobResumed{"jobs/2"}};
  const Outcome outcome = DecideAll(cluster.state, events, cluster.now, cluster.config);
  EXPECT_THAT(JobsOf(outcome), ElementsAre("jobs/1", "jobs/2", "jobs/1", "jobs/2", "jobs/2"));
  ASSERT_EQ(outcome.jobs.size(), 2u);
  EXPECT_EQ(outcome.jobs.at(2).job().state(), v1::JOB_STATE_QUEUED);
  EXPECT_GT(outcome.jobs.at(2).queue_order(), outcome.jobs.at(1).queue_order());
  EXPECT_TRUE(outcome.schedule);
}

TEST(DecideAllTest, ARefusedEventChangesNothing) {
  FakeCluster cluster;
  JobSubmitted bad{.spec = FakeCluster::Spec(1)};
  bad.spec.mutable_scheduling()->set_queue("none");
  const std::vector<Event> events = {bad, JobCancelled{"jobs/9"},
                                     JobSubmitted{.spec = FakeCluster::Spec(1)}};
  const Outcome outcome = DecideAll(cluster.state, events, cluster.now, cluster.config);
  EXPECT_EQ(outcome.results[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(outcome.results[1].status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(outcome.results[2].status.ok());
  EXPECT_EQ(outcome.jobs.size(), 1u);
  EXPECT_EQ(outcome.durable_jobs.size(), 1u);
}

TEST(DecideAllTest, GivesWhatOneAfterTheOtherGives) {
  const std::vector<Event> events = {
      WorkerHello{FakeCluster::MakeHello("a", 2, 1)},
      JobSubmitted{.uid = "u", .spec = FakeCluster::Spec(2)},
      WorkerDrained{"workers/a", "test", absl::FromUnixSeconds(2000)},
      JobSuspended{"jobs/1"},
      WorkerHello{FakeCluster::MakeHello("a", 2, 2)},
      WorkerResumed{"workers/a"},
      JobResumed{"jobs/1", "r"},
  };
  FakeCluster together;
  together.state.Apply(DecideAll(together.state, events, together.now, together.config));
  FakeCluster apart;
  for (const Event& event : events) {
    apart.state.Apply(Decide(apart.state, event, apart.now, apart.config));
  }
  EXPECT_EQ(together.Record("jobs/1").DebugString(), apart.Record("jobs/1").DebugString());
  EXPECT_EQ(together.Worker("a").DebugString(), apart.Worker("a").DebugString());
  EXPECT_EQ(together.Worker("a").state(), v1::WORKER_STATE_READY);
}

TEST(DecideAllTest, ALeaseRenewedInTheSameDecisionDoesNotEnd) {
  FakeCluster cluster;
  cluster.Connect("a", 1);
  cluster.now += cluster.config.lease;
  const std::vector<Event> events = {WorkerHeartbeat{"workers/a"}, Tick{}};
  cluster.state.Apply(DecideAll(cluster.state, events, cluster.now, cluster.config));
  EXPECT_EQ(cluster.Worker("a").state(), v1::WORKER_STATE_READY);
  cluster.Do(LeasesLengthened{absl::Seconds(10)});
  cluster.Advance(cluster.config.lease + absl::Seconds(9));
  EXPECT_EQ(cluster.Worker("a").state(), v1::WORKER_STATE_READY);
}

TEST(DescribeTest, FieldsThatAreAskedForAreThoseOfTheWhole) {
  FakeCluster cluster;
  cluster.Connect("a", 2);
  const std::string running = cluster.Submit(2), waiting = cluster.Submit(2);
  cluster.ReportAll(running, v1::RANK_STATE_RUNNING);
  google::protobuf::FieldMask fields;
  for (const char* path : {"name", "state", "reason_detail", "queue_position", "etag",
                           "spec.resources.ranks", "progress.step", "events"}) {
    fields.add_paths(path);
  }
  for (const std::string& name : {running, waiting}) {
    v1::Job whole = Describe(cluster.state, cluster.Record(name));
    const v1::Job part = Describe(cluster.state, cluster.Record(name), fields);
    google::protobuf::util::FieldMaskUtil::TrimMessage(fields, &whole);
    EXPECT_EQ(part.DebugString(), whole.DebugString());
    EXPECT_EQ(part.name(), name);
    EXPECT_EQ(part.placements_size(), 0);
    EXPECT_FALSE(part.etag().empty());
  }
  EXPECT_EQ(Describe(cluster.state, cluster.Record(waiting), fields).queue_position(), 1);
  EXPECT_EQ(Describe(cluster.state, cluster.Record(running), {}).placements_size(), 2);
}

}  // namespace
}  // namespace milepost::coordinator
