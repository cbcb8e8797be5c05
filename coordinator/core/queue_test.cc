// Queues, priorities, preemption, time limits, suspending, draining: over whole decisions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Wish {
  int ranks = 1;
  int priority = 0;
  std::string queue = "";
  double time_limit = 0;
  std::vector<std::string> depends_on = {};
};

class QueueTest : public ::testing::Test, public FakeCluster {
 protected:
  void TearDown() override { EXPECT_EQ(violation, ""); }

  Outcome Try(const Wish& wish) {
    v1::JobSpec spec = Spec(wish.ranks);
    spec.mutable_scheduling()->set_queue(wish.queue);
    spec.mutable_scheduling()->set_priority(wish.priority);
    spec.mutable_scheduling()->set_time_limit(wish.time_limit);
    for (const std::string& name : wish.depends_on) {
      spec.mutable_scheduling()->add_depends_on(name);
    }
    return Do(JobSubmitted{.spec = spec});
  }
  std::string Submit(const Wish& wish) {
    const Outcome outcome = Try(wish);
    EXPECT_EQ(outcome.status, absl::OkStatus());
    return outcome.job;
  }
  Outcome Put(const std::string& id, int guaranteed, int limit = -1, bool create = true) {
    v1::Queue queue;
    queue.set_name(QueueName(id));
    v1::SlotQuota* quota = queue.add_quotas();
    quota->set_device(v1::DEVICE_KIND_CPU);
    quota->set_guaranteed(guaranteed);
    if (limit >= 0) quota->set_limit(limit);
    return Do(QueuePut{queue, create});
  }
  v1::JobState StateOf(const std::string& job) const { return Job(job).state(); }
  void Run(const std::string& job) { ReportAll(job, v1::RANK_STATE_RUNNING); }
  // All ranks that were told to stop have saved a checkpoint and left.
  void Leave(const std::string& job) { ReportAll(job, v1::RANK_STATE_STOPPED); }
};

TEST_F(QueueTest, AVictimSavesLeavesAndComesBackAtNoCost) {
  Connect("a", 4);
  const std::string low = Submit(Wish{.ranks = 4});
  Run(low);
  Clear();
  const std::string high = Submit(Wish{.ranks = 2, .priority = 10});
  EXPECT_EQ(StateOf(low), v1::JOB_STATE_PREEMPTING);
  EXPECT_EQ(Job(low).reason(), v1::JOB_REASON_PREEMPTED);
  EXPECT_THAT(Job(low).reason_detail(), HasSubstr("makes room for jobs/2"));
  EXPECT_EQ(Count(&v1::CoordinatorMessage::has_stop_rank), 4);
  EXPECT_TRUE(sent.back().message.stop_rank().graceful());
  EXPECT_THAT(Job(high).reason_detail(), HasSubstr("make room"));
  // Who comes now does not get the slots that come free.
  const std::string later = Submit(Wish{.ranks = 1});
  Leave(low);
  EXPECT_EQ(StateOf(high), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf(low), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job(low).reason(), v1::JOB_REASON_PREEMPTED);
  EXPECT_EQ(Job(low).failures(), 0);
  EXPECT_EQ(Job(low).preemptions(), 1);
  EXPECT_EQ(StateOf(later), v1::JOB_STATE_QUEUED) << "low came before it";
  ReportAll(high, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(StateOf(low), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job(low).generation(), 2);
}

TEST_F(QueueTest, AVictimThatCrashesWhileItSavesCostsNothingEither) {
  Connect("a", 2);
  const std::string low = Submit(Wish{.ranks = 2});
  Run(low);
  const std::string high = Submit(Wish{.ranks = 2, .priority = 1});
  ReportAll(low, v1::RANK_STATE_FAILED);
  EXPECT_EQ(StateOf(low), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job(low).failures(), 0);
  EXPECT_EQ(StateOf(high), v1::JOB_STATE_STARTING);
}

TEST_F(QueueTest, AGrantEndsWithTheJob) {
  Connect("a", 2);
  const std::string low = Submit(Wish{.ranks = 2});
  Run(low);
  const std::string high = Submit(Wish{.ranks = 2, .priority = 1});
  Do(JobCancelled{high});
  Leave(low);
  EXPECT_EQ(StateOf(low), v1::JOB_STATE_STARTING);
}

TEST_F(QueueTest, AQueueTakesItsGuaranteeBack) {
  Connect("a", 4);
  EXPECT_TRUE(Put("team", 2).status.ok());
  const std::string one = Submit(Wish{.ranks = 2});
  const std::string two = Submit(Wish{.ranks = 2, .priority = 100});
  Run(one);
  Run(two);
  const std::string mine = Submit(Wish{.ranks = 2, .priority = -100, .queue = "team"});
  EXPECT_EQ(StateOf(one), v1::JOB_STATE_PREEMPTING);
  EXPECT_EQ(StateOf(two), v1::JOB_STATE_RUNNING);
  Leave(one);
  EXPECT_EQ(StateOf(mine), v1::JOB_STATE_STARTING);
  const std::string more = Submit(Wish{.ranks = 1, .queue = "team"});
  EXPECT_EQ(StateOf(two), v1::JOB_STATE_RUNNING) << "beyond the guarantee nothing is taken";
  EXPECT_EQ(StateOf(more), v1::JOB_STATE_QUEUED);
}

TEST_F(QueueTest, SaysWhatAQueueMayHold) {
  Connect("a", 8);
  Put("team", 0, 3);
  EXPECT_THAT(Try(Wish{.ranks = 4, .queue = "team"}).status.message(),
              AllOf(HasSubstr("resources.ranks"), HasSubstr("more than the 3")));
  EXPECT_THAT(Try(Wish{.queue = "none"}).status.message(), HasSubstr("no queue 'none'"));
  const std::string first = Submit(Wish{.ranks = 2, .queue = "team"});
  const std::string second = Submit(Wish{.ranks = 2, .queue = "team"});
  EXPECT_EQ(Job(second).reason(), v1::JOB_REASON_QUEUE_LIMIT);
  EXPECT_THAT(Job(second).reason_detail(), HasSubstr("queue team holds 2 of the 3"));
  EXPECT_EQ(Job(second).queue_position(), 1);
  Put("team", 0, 4, /*create=*/false);
  EXPECT_EQ(StateOf(second), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf(first), v1::JOB_STATE_STARTING);
}

TEST_F(QueueTest, QueuesAreMadeChangedAndDeleted) {
  EXPECT_TRUE(Put("team", 2).status.ok());
  EXPECT_EQ(Put("team", 2).status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Put("default", 2).status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Put("other", 2, -1, /*create=*/false).status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Put("default", 2, -1, /*create=*/false).status.ok());
  const std::string job = Submit(Wish{.queue = "team"});
  EXPECT_THAT(Do(QueueDeleted{"queues/team"}).status.message(), HasSubstr("jobs/1 is in queue"));
  Do(JobCancelled{job});
  EXPECT_EQ(Do(QueueDeleted{"queues/team", "v7"}).status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Do(QueueDeleted{"queues/team", "v1"}).status.ok());
  EXPECT_EQ(state.FindQueue("team"), nullptr);
  EXPECT_EQ(Do(QueueDeleted{"queues/default"}).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

// What has ended may have ended in a queue that is gone, or by its time limit.
TEST_F(QueueTest, LabelsOfEndedJobsCanBeChanged) {
  Connect("a", 1);
  Put("team", 0, 4);
  const std::string job = Submit(Wish{.queue = "team", .time_limit = 100});
  Run(job);
  now += absl::Seconds(100);
  Do(WorkerHeartbeat{"workers/a"});
  Do(Tick{});
  Leave(job);
  ASSERT_EQ(Job(job).reason(), v1::JOB_REASON_TIME_LIMIT);
  ASSERT_TRUE(Do(QueueDeleted{"queues/team"}).status.ok());
  JobUpdated update = {.job = job, .scheduling = Job(job).spec().scheduling()};
  update.labels.emplace()["team"] = "vision";
  const absl::Status labelled = Do(update).status;
  ASSERT_TRUE(labelled.ok()) << labelled;
  EXPECT_EQ(Job(job).labels().at("team"), "vision");
  update.scheduling.set_priority(1);
  EXPECT_THAT(Do(update).status.message(), HasSubstr("no queue 'team'"));
}

TEST_F(QueueTest, AJobWaitsForThoseItDependsOn) {
  Connect("a", 4);
  const std::string first = Submit(Wish{.ranks = 1});
  const std::string second = Submit(Wish{.ranks = 1, .depends_on = {first}});
  EXPECT_EQ(Job(second).reason(), v1::JOB_REASON_DEPENDENCY);
  EXPECT_THAT(Job(second).reason_detail(), HasSubstr("when jobs/1 has succeeded"));
  Do(JobCancelled{first});
  Leave(first);
  EXPECT_THAT(Job(second).reason_detail(), HasSubstr("ended without success"));
  Do(JobResumed{first});
  ReportAll(first, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(StateOf(second), v1::JOB_STATE_STARTING);
  EXPECT_THAT(Try(Wish{.depends_on = {"jobs/9"}}).status.message(), HasSubstr("no job 'jobs/9'"));
}

TEST_F(QueueTest, NothingDependsOnItself) {
  const std::string first = Submit(Wish{});
  const std::string second = Submit(Wish{.depends_on = {first}});
  v1::SchedulingSpec scheduling;
  scheduling.add_depends_on(second);
  EXPECT_THAT(Do(JobUpdated{first, "", scheduling}).status.message(),
              HasSubstr("one of these jobs depends on jobs/1 itself"));
}

TEST_F(QueueTest, AJobWhoseTimeIsUpWhileItSuspendsIsOver) {
  Connect("a", 1);
  const std::string job = Submit(Wish{.time_limit = 100});
  Run(job);
  now += absl::Seconds(99);
  Do(JobSuspended{job});
  now += absl::Seconds(2);
  Leave(job);  // resumed as it is, it would start only to be stopped again
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_TIME_LIMIT);
  Do(JobResumed{job, "again"});
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
  EXPECT_EQ(TimeLimitEnd(Record(job)), now + absl::Seconds(100));
}

TEST_F(QueueTest, AJobThatWaitsIsNotLeftWithoutTime) {
  Connect("a", 1);
  const std::string job = Submit(Wish{.time_limit = 100});
  Run(job);
  now += absl::Seconds(50);
  Do(JobSuspended{job});
  Leave(job);
  v1::SchedulingSpec scheduling = Job(job).spec().scheduling();
  scheduling.set_time_limit(50);
  EXPECT_THAT(Do(JobUpdated{job, "", scheduling}).status.message(),
              HasSubstr("has held its slots for 50 s already"));
  scheduling.set_time_limit(51);
  EXPECT_EQ(Do(JobUpdated{job, "", scheduling}).status, absl::OkStatus());
}

TEST_F(QueueTest, WhoeverHoldsSlotsByItsTimeLimitKeepsToIt) {
  Connect("a", 2);
  const std::string old = Submit(Wish{.time_limit = 1000});
  Run(old);
  const std::string head = Submit(Wish{.ranks = 2});
  const std::string filler = Submit(Wish{.time_limit = 100});
  Run(filler);
  ASSERT_EQ(StateOf(filler), v1::JOB_STATE_RUNNING) << "it ends before the head can start";
  const auto update = [&](const std::string& job, double limit, bool by_admin) {
    JobUpdated event = {job, "", Job(job).spec().scheduling()};
    event.scheduling.set_time_limit(limit);
    event.by_admin = by_admin;
    return Do(event).status;
  };
  for (const double more : {0.0, 101.0}) {
    const absl::Status refused = update(filler, more, /*by_admin=*/false);
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(refused.message(), HasSubstr("suspend the job first"));
  }
  EXPECT_EQ(update(filler, 90, false), absl::OkStatus());
  EXPECT_EQ(update(filler, 90, false), absl::OkStatus());
  EXPECT_EQ(update(filler, 200, true), absl::OkStatus());
  // What is kept for it while it backs off it holds too.
  v1::RankReport failed = Report(filler, 0, v1::RANK_STATE_FAILED);
  failed.set_failure_class(v1::FAILURE_CLASS_NETWORK);
  Send(failed);
  EXPECT_EQ(Job(filler).reason(), v1::JOB_REASON_BACKING_OFF);
  EXPECT_EQ(update(filler, 0, false).code(), absl::StatusCode::kPermissionDenied);
  // Of one that holds none it is its owner's.
  EXPECT_EQ(update(head, 50, false), absl::OkStatus());
  EXPECT_EQ(update(head, 0, false), absl::OkStatus());
  Do(JobSuspended{filler});
  EXPECT_EQ(update(filler, 0, false), absl::OkStatus());
}

TEST_F(QueueTest, ATimeLimitEndsAJobWithACheckpoint) {
  Connect("a", 1);
  const std::string job = Submit(Wish{.time_limit = 100});
  Run(job);
  Do(WorkerHeartbeat{"workers/a"});
  now += absl::Seconds(60);
  Do(WorkerHello{MakeHello("a", 1, 2)});  // the host has restarted: 40 seconds are left
  Advance(absl::Seconds(2));
  ASSERT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
  Run(job);
  const absl::Time end = now + absl::Seconds(40);
  for (int i = 0; i < 100 && NextDeadline(state) < end; ++i) {
    now += absl::Seconds(1);
    Do(WorkerHeartbeat{"workers/a"});
    Do(Tick{});
  }
  EXPECT_EQ(NextDeadline(state), end);
  now = end;
  Do(WorkerHeartbeat{"workers/a"});
  Clear();
  Do(Tick{});
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_CANCELLING);
  EXPECT_TRUE(sent.back().message.stop_rank().graceful());
  Leave(job);
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_TIME_LIMIT);
  Do(JobResumed{job});
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
}

TEST_F(QueueTest, SuspendsAndResumes) {
  Connect("a", 2);
  const std::string job = Submit(Wish{.ranks = 2});
  Run(job);
  Clear();
  EXPECT_TRUE(Do(JobSuspended{job}).status.ok());
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_SUSPENDING);
  EXPECT_TRUE(sent.back().message.stop_rank().graceful());
  EXPECT_TRUE(Do(JobSuspended{job}).status.ok());
  Leave(job);
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_SUSPENDED);
  const std::string other = Submit(Wish{.ranks = 2});
  EXPECT_EQ(StateOf(other), v1::JOB_STATE_STARTING);
  ReportAll(other, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_SUSPENDED);
  Do(JobResumed{job});
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job(job).failures(), 0);
}

TEST_F(QueueTest, SuspendsWhatWaitsBacksOffOrWindsUp) {
  const std::string waits = Submit(Wish{});
  Do(JobSuspended{waits});
  EXPECT_EQ(StateOf(waits), v1::JOB_STATE_SUSPENDED);
  Do(JobCancelled{waits});
  EXPECT_EQ(StateOf(waits), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Do(JobSuspended{waits}).status.code(), absl::StatusCode::kFailedPrecondition);

  Connect("a", 1);
  const std::string job = Submit(Wish{});
  Send(Report(job, 0, v1::RANK_STATE_FAILED));
  ASSERT_EQ(StateOf(job), v1::JOB_STATE_RECOVERING);
  Do(JobSuspended{job});
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_SUSPENDED);
  Do(JobResumed{job});
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
  Do(JobSuspended{job});
  Do(JobResumed{job});  // before its ranks have left
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_PREEMPTING);
  Leave(job);
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
}

TEST_F(QueueTest, AResumedSuspensionKeepsWhatWasAsked) {
  const std::string job = Submit(Wish{});
  Do(JobSuspended{job});
  EXPECT_TRUE(Do(JobResumed{job, "r1", 2000}).status.ok());
  EXPECT_EQ(Job(job).spec().train().steps(), 2000);
  EXPECT_TRUE(Do(JobResumed{job, "r1", 2000}).status.ok()) << "said again";
  EXPECT_FALSE(Do(JobResumed{job, "r2"}).status.ok());
}

TEST_F(QueueTest, AResumedVictimDoesNotTakeItsSlotsBack) {
  Connect("a", 2);
  const std::string low = Submit(Wish{.ranks = 2});
  Run(low);
  const std::string high = Submit(Wish{.ranks = 2, .priority = 1});
  Do(JobSuspended{low});
  Do(JobResumed{low});
  EXPECT_EQ(StateOf(low), v1::JOB_STATE_PREEMPTING);
  Leave(low);
  EXPECT_EQ(StateOf(high), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf(low), v1::JOB_STATE_QUEUED);
}

TEST_F(QueueTest, ARunningJobIsNotMovedBeyondALimit) {
  Connect("a", 8);
  Put("team", 0, 4);
  const std::string theirs = Submit(Wish{.ranks = 3, .queue = "team"});
  const std::string mine = Submit(Wish{.ranks = 2});
  Run(theirs);
  Run(mine);
  v1::SchedulingSpec scheduling;
  scheduling.set_queue("team");
  EXPECT_THAT(Do(JobUpdated{mine, "", scheduling}).status.message(),
              HasSubstr("queue team would hold 5 of the 4"));
}

TEST_F(QueueTest, ABlinkingWorkerChangesNoOrder) {
  Connect("a", 4);
  Connect("b", 4);
  const std::string holder = Submit(Wish{.ranks = 2});
  Run(holder);
  const std::string head = Submit(Wish{.ranks = 8});
  const std::string small = Submit(Wish{.ranks = 1});
  Do(WorkerStreamLost{Record(holder).ranks(0).worker()});
  EXPECT_EQ(StateOf(small), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job(small).reason_detail(), HasSubstr(head));
}

TEST_F(QueueTest, UpdatesWhatDecidesWhenAJobRuns) {
  Connect("a", 1);
  const std::string running = Submit(Wish{});
  Run(running);
  const std::string waits = Submit(Wish{});
  v1::SchedulingSpec scheduling = Job(waits).spec().scheduling();
  scheduling.set_priority(3);
  EXPECT_EQ(Do(JobUpdated{waits, "v9", scheduling}).status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Do(JobUpdated{waits, Job(waits).etag(), scheduling}).status.ok());
  EXPECT_EQ(Job(waits).etag(), "v1");
  EXPECT_EQ(StateOf(running), v1::JOB_STATE_PREEMPTING);
  Leave(running);
  EXPECT_EQ(StateOf(waits), v1::JOB_STATE_STARTING);
  scheduling.set_queue("nowhere");
  EXPECT_EQ(Do(JobUpdated{waits, "", scheduling}).status.code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(QueueTest, ADrainedWorkerGivesItsJobsAway) {
  Connect("a", 2);
  Connect("b", 2);
  const std::string job = Submit(Wish{.ranks = 2});
  Run(job);
  ASSERT_EQ(Record(job).ranks(0).worker(), "workers/a");
  Do(WorkerDrained{"workers/a", "new disk", now});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINING);
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("workers/a is drained: new disk"));
  Leave(job);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINED);
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Record(job).ranks(0).worker(), "workers/b");
  EXPECT_EQ(Job(job).failures(), 0);
  Do(WorkerHello{MakeHello("a", 2, 2)});  // also when it comes back
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINED);
  const std::string next = Submit(Wish{.ranks = 2});
  EXPECT_EQ(StateOf(next), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(Do(WorkerResumed{"workers/a"}).status.ok());
  EXPECT_EQ(StateOf(next), v1::JOB_STATE_STARTING);
}

TEST_F(QueueTest, WhoWaitsForADrainedWorkerIsToldOfIt) {
  Connect("a", 2);
  Do(WorkerDrained{"workers/a", "new disk", now});
  const std::string job = Submit(Wish{.ranks = 3});
  EXPECT_EQ(Job(job).reason_detail(),
            "needs 3 cpu slots; no worker is ready: start workers with 3 cpu slots, or take one "
            "back from a drain; workers/a with 2 such slots is drained since 1970-01-01 00:16:40 "
            "UTC: new disk; `milepost worker resume workers/a` takes it back");
  Connect("b", 1);
  EXPECT_THAT(Job(job).reason_detail(),
              HasSubstr("the workers have 1 cpu slot: start workers with 2 more, or take one back "
                        "from a drain; workers/a with 2 such slots is drained since"));
  for (const char* id : {"c", "d", "e", "f", "g"}) {
    Connect(id, 1);
    Do(WorkerDrained{WorkerName(id), "move", now});
  }
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("workers/d with 1 such slot is drained"));
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("; and 3 more"));
  EXPECT_TRUE(Do(WorkerResumed{"workers/a"}).status.ok());
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
}

TEST_F(QueueTest, WhoWaitsForAWorkerThatIsDownIsToldOfIt) {
  Connect("a", 2);
  Advance(config.lease);
  const std::string job = Submit(Wish{.ranks = 3});
  EXPECT_EQ(Job(job).reason_detail(),
            "needs 3 cpu slots; no worker is ready: start workers with 3 cpu slots; workers/a with "
            "2 such slots is down since 1970-01-01 00:16:45 UTC");
  Connect("b", 1);
  Connect("c", 1);
  Advance(config.lease);
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("workers/c with 1 such slot is down since"));
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("workers/a with 2 such slots is down since"));
  EXPECT_LT(Job(job).reason_detail().find("workers/b"), Job(job).reason_detail().find("workers/a"))
      << "the newest first";
  Connect("a", 2);
  Connect("b", 1);
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
  const std::string next = Submit(Wish{.ranks = 3});
  EXPECT_THAT(Job(next).reason_detail(), Not(HasSubstr("is down"))) << "it waits for jobs";
}

TEST_F(QueueTest, ADrainedWorkerIsNamedBesideThoseThatHoldSlots) {
  Connect("a", 1);
  Connect("b", 1);
  Do(WorkerDrained{"workers/b", "update", now + absl::Hours(1)});
  Run(Submit(Wish{}));
  const std::string job = Submit(Wish{});
  EXPECT_THAT(Job(job).reason_detail(),
              HasSubstr("0 of 1 on 1 ready worker are free; workers/b with 1 such slot is drained "
                        "since 1970-01-01 00:16:40 UTC: update"));
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("; 1 held by jobs/1 until it ends"));
}

TEST_F(QueueTest, ADrainMayWaitForItsDeadline) {
  Connect("a", 1);
  const std::string job = Submit(Wish{});
  Run(job);
  const absl::Time deadline = now + absl::Seconds(3);
  Do(WorkerDrained{"workers/a", "later", deadline});
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(NextDeadline(state), deadline);
  const std::string other = Submit(Wish{});
  EXPECT_EQ(StateOf(other), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(3));
  EXPECT_EQ(StateOf(job), v1::JOB_STATE_RECOVERING);
  EXPECT_GT(NextDeadline(state), now);
  Leave(job);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINED);
}

TEST_F(QueueTest, AHostThatFailedIsTheLastChoice) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(Wish{});
  Run(job);
  ASSERT_EQ(Record(job).ranks(0).worker(), "workers/a");
  v1::RankReport report = Report(job, 0, v1::RANK_STATE_FAILED);
  report.set_failure_class(v1::FAILURE_CLASS_DEVICE);
  Send(report);
  for (const char* worker : {"workers/a", "workers/b"}) Do(WorkerHeartbeat{worker});
  Advance(absl::Seconds(2));
  ASSERT_EQ(StateOf(job), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Record(job).ranks(0).worker(), "workers/b");
  const std::string other = Submit(Wish{});
  EXPECT_EQ(Record(other).ranks(0).worker(), "workers/a") << "better than none";
}

}  // namespace
}  // namespace milepost::coordinator
