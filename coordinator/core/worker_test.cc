// Workers: leases, streams, incarnations, leaving, what a Hello repairs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error_details.h"
#include "common/incarnation.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class WorkerTest : public ::testing::Test, public FakeCluster {
 protected:
  void TearDown() override { EXPECT_EQ(violation, ""); }

  // A Hello that says everything that the coordinator believes runs on the worker.
  v1::Hello HelloWithRanks(const std::string& id, int slots, const std::string& job) const {
    v1::Hello hello = MakeHello(id, slots, Worker(id).incarnation());
    for (const v1::RankRecord& rank : Record(job).ranks()) {
      if (rank.worker() == WorkerName(id)) {
        *hello.add_ranks() = Report(job, rank.rank(), v1::RANK_STATE_RUNNING);
      }
    }
    return hello;
  }
  int Starts() const { return Count(&v1::CoordinatorMessage::has_start_rank); }
  int Stops() const { return Count(&v1::CoordinatorMessage::has_stop_rank); }
  int Forgets() const { return Count(&v1::CoordinatorMessage::has_forget_rank); }
};

TEST_F(WorkerTest, LostStreamIsNotALostWorker) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(WorkerStreamLost{"workers/a"});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DISCONNECTED);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  Advance(config.lease - absl::Milliseconds(1));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  Clear();
  Do(WorkerHello{HelloWithRanks("a", 1, job)});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job(job).generation(), 1);
  EXPECT_TRUE(sent.empty());
}

TEST_F(WorkerTest, ExpiredLeaseLosesTheRanks) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Clear();
  now += config.lease - absl::Seconds(1);
  Do(WorkerHeartbeat{"workers/b"});
  Advance(absl::Seconds(1));
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DOWN);
  EXPECT_EQ(Worker("b").state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_WORKER_LOST);
  EXPECT_EQ(Job(job).first_failure().class_(), v1::FAILURE_CLASS_HOST);
  EXPECT_EQ(Stops(), 1);
  EXPECT_TRUE(sent.back().close);     // should the worker still have a stream, it says Hello again
  EXPECT_EQ(Job(job).failures(), 0);  // not over yet: rank 1 runs
  ReportAll(job, v1::RANK_STATE_FAILED);
  EXPECT_EQ(Job(job).failures(), 1);
}

TEST_F(WorkerTest, HostFailureIsTheCauseAlthoughPeersNoticeFirst) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::RankReport report = Report(job, 1, v1::RANK_STATE_FAILED);
  report.set_peer_lost(true);
  report.set_message("peer went away");
  Send(report);
  Do(WorkerStreamLost{"workers/a"});
  EXPECT_EQ(Job(job).first_failure().message(), "peer went away");
  Do(WorkerHeartbeat{"workers/b"});
  Advance(config.lease);
  EXPECT_THAT(Job(job).first_failure().message(), HasSubstr("nothing was heard of workers/a"));
  EXPECT_EQ(Job(job).failures(), 1);
}

TEST_F(WorkerTest, NewIncarnationLosesItsRanksAtOnce) {
  Connect("a", 1, 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(WorkerStreamLost{"workers/a"});
  Connect("a", 1, 2);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_BACKING_OFF);
  EXPECT_THAT(Job(job).first_failure().message(), HasSubstr("restarted"));
  Advance(absl::Seconds(1));
  EXPECT_EQ(Job(job).generation(), 2);
}

TEST_F(WorkerTest, OlderIncarnationIsRefused) {
  Connect("a", 1, 5);
  Outcome outcome = Connect("a", 1, 4);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Worker("a").incarnation(), 5);
}

// Whoever says the highest number does not keep the worker out: it is told the number to exceed.
TEST_F(WorkerTest, NoIncarnationIsTheLastOne) {
  EXPECT_EQ(Connect("a", 1, INT64_MAX).status.code(), absl::StatusCode::kInvalidArgument);
  int64_t known = kMostIncarnation;
  ASSERT_TRUE(Connect("a", 1, known).status.ok());
  for (int start = 0; start < 3; ++start) {
    const absl::Status refused = Connect("a", 1, 1'800'000'000).status;
    EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_WORKER_SUPERSEDED);
    ASSERT_EQ(KnownIncarnation(refused), known);
    EXPECT_EQ(Connect("a", 1, known + 2).status.code(), absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(Connect("a", 1, ++known).status.ok());
    EXPECT_TRUE(Connect("a", 1, known).status.ok()) << "the same process again";
  }
  EXPECT_EQ(Connect("a", 1, known - 1).status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(WorkerTest, StartThatWasNeverSeenIsSentAgain) {
  Connect("a", 1);
  const std::string job = Submit(1);
  Clear();
  Do(WorkerStreamLost{"workers/a"});
  Connect("a", 1);  // mentions no rank
  EXPECT_EQ(Starts(), 1);
  EXPECT_EQ(Job(job).generation(), 1);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
}

TEST_F(WorkerTest, RankThatVanishedIsLost) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_STARTING);
  Connect("a", 1);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_BACKING_OFF);
}

TEST_F(WorkerTest, StopIsRepeatedByHello) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(JobCancelled{job});
  Clear();
  Do(WorkerHello{HelloWithRanks("a", 1, job)});
  ASSERT_EQ(Stops(), 1);
  EXPECT_TRUE(sent[0].message.stop_rank().graceful());
}

TEST_F(WorkerTest, StaleRankIsKilledAndKeepsItsSlotUntilItIsGone) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  const v1::Hello hello = HelloWithRanks("a", 1, job);
  Advance(config.lease);  // down: the job backs off
  Advance(absl::Seconds(1));
  Clear();
  Do(WorkerHello{hello});  // it was only cut off: generation 1 still runs there
  ASSERT_EQ(Stops(), 1);
  EXPECT_FALSE(sent[0].message.stop_rank().graceful());
  EXPECT_EQ(Starts(), 0);
  v1::RankReport killed = hello.ranks(0);
  killed.set_state(v1::RANK_STATE_FAILED);
  killed.set_signal(9);
  Do(RankReported{"workers/a", killed});
  EXPECT_EQ(Forgets(), 1);
  EXPECT_EQ(Starts(), 1);
  EXPECT_EQ(Job(job).generation(), 2);
  Do(RankReported{"workers/a", killed});  // again: nothing but another Forget
  EXPECT_EQ(Forgets(), 2);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
}

TEST_F(WorkerTest, RanksOfUnknownJobsAreKilled) {
  v1::Hello hello = MakeHello("a", 1, 1);
  v1::RankReport* rank = hello.add_ranks();
  rank->set_job("jobs/77");
  rank->set_generation(3);
  rank->set_state(v1::RANK_STATE_RUNNING);
  Do(WorkerHello{hello});
  EXPECT_EQ(Stops(), 1);
}

TEST_F(WorkerTest, LeavingCostsNothingAndTheJobGoesElsewhere) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Clear();
  Do(WorkerLeaving{"workers/a", "SIGTERM"});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINING);
  ASSERT_EQ(Stops(), 2);  // the peer too: it cannot go on alone
  EXPECT_TRUE(sent[0].message.stop_rank().graceful());
  EXPECT_TRUE(sent[1].message.stop_rank().graceful());
  ReportAll(job, v1::RANK_STATE_STOPPED);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_WORKER_LEAVING);
  EXPECT_EQ(Job(job).failures(), 0);
  Do(WorkerStreamLost{"workers/a"});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DOWN);
  Connect("c", 1);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job(job).generation(), 2);
}

TEST_F(WorkerTest, PeersOfALeavingRankDoNotSpendTheBudget) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::RankReport peer = Report(job, 1, v1::RANK_STATE_FAILED);
  peer.set_peer_lost(true);
  Send(peer);  // arrives before the cause does
  Send(Report(job, 0, v1::RANK_STATE_STOPPED));
  EXPECT_EQ(Job(job).failures(), 0);
  EXPECT_EQ(Job(job).attempts(), 2);
}

TEST_F(WorkerTest, LeavingWorkerGetsNothingNewUntilItsNextIncarnation) {
  Connect("a", 1);
  Do(WorkerLeaving{"workers/a", ""});
  const std::string job = Submit(1);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_QUEUED);
  Connect("a", 1, 1);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_QUEUED);
  Connect("a", 1, 2);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
}

TEST_F(WorkerTest, CoordinatorRestartExtendsLeasesAndAdoptsRanks) {
  Connect("a", 2);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  const v1::Hello hello = HelloWithRanks("a", 2, job);
  now += absl::Hours(1);  // the coordinator was away
  Do(CoordinatorRestarted{});
  Do(Tick{});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DISCONNECTED);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  Clear();
  Advance(absl::Seconds(1));
  Do(WorkerHello{hello});
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job(job).generation(), 1);
  EXPECT_EQ(Job(job).failures(), 0);
}

TEST_F(WorkerTest, RestartedCoordinatorLosesWorkersThatStayAway) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  now += absl::Hours(1);
  Do(CoordinatorRestarted{});
  EXPECT_EQ(NextDeadline(state), now + config.lease);
  Advance(config.lease);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DOWN);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RECOVERING);
}

TEST_F(WorkerTest, WorkersThatEndedTogetherAreNoFailureOfTheirJobs) {
  for (int run = 1; run <= 5; ++run) {
    Connect("a", 1, run);
    if (run == 1) Submit(1);
    ReportAll("jobs/1", v1::RANK_STATE_RUNNING);
    ASSERT_EQ(Job("jobs/1").state(), v1::JOB_STATE_RUNNING) << "run " << run;
    Do(CoordinatorRestarted{});
    Do(WorkersGone{});
    EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DOWN);
    EXPECT_EQ(Job("jobs/1").state(), v1::JOB_STATE_QUEUED);
    EXPECT_FALSE(Job("jobs/1").has_first_failure());
    EXPECT_EQ(Job("jobs/1").failures(), 0);
    EXPECT_EQ(Job("jobs/1").attempts(), run);
    EXPECT_EQ(state.FindWorker("workers/a")->failures_size(), 0);
  }
}

TEST_F(WorkerTest, TheTimeAfterAllWorkersEndedIsNoneOfAJobsLimit) {
  Connect("a", 1);
  v1::JobSpec spec = Spec(1);
  spec.mutable_scheduling()->set_time_limit(3600);
  const std::string job = Do(JobSubmitted{.spec = spec}).job;
  ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::RankProgress progress;
  progress.set_job(job);
  progress.set_generation(1);
  progress.mutable_progress()->set_step(5);
  progress.mutable_progress()->set_productive_seconds(600);
  Do(RankProgressed{"workers/a", progress});
  now += absl::Hours(12);
  Do(CoordinatorRestarted{});
  Do(WorkersGone{});
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_QUEUED) << Job(job).reason_detail();
  EXPECT_EQ(Record(job).held_before(), 600);
  // Nor does what a worker says give it time.
  Connect("a", 1, 2);
  progress.set_generation(2);
  progress.mutable_progress()->set_productive_seconds(-1e9);
  Do(RankProgressed{"workers/a", progress});
  Do(WorkersGone{});
  EXPECT_EQ(Record(job).held_before(), 600);
}

TEST_F(WorkerTest, WorkersThatEndedTogetherTakeAWishAlong) {
  Connect("a", 3);
  const std::string cancelled = Submit(1), suspended = Submit(1), failed = Submit(1);
  for (const std::string& job : {cancelled, suspended, failed}) {
    ReportAll(job, v1::RANK_STATE_RUNNING);
  }
  Do(JobCancelled{cancelled});
  Do(JobSuspended{suspended});
  Send(Report(failed, 0, v1::RANK_STATE_FAILED));
  Do(CoordinatorRestarted{});
  Do(WorkersGone{});
  EXPECT_EQ(Job(cancelled).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Job(suspended).state(), v1::JOB_STATE_SUSPENDED);
  EXPECT_EQ(Job(failed).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(failed).failures(), 1);
}

TEST_F(WorkerTest, ARankThatLostAPeerBeforeAllEndedIsNoFailureOfItsJob) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::RankReport report = Report(job, 0, v1::RANK_STATE_FAILED);
  report.set_peer_lost(true);
  Send(report);
  ASSERT_EQ(Job(job).state(), v1::JOB_STATE_RECOVERING);
  Do(CoordinatorRestarted{});
  Do(WorkersGone{});
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job(job).failures(), 0);
}

// A rank that failed by itself just before is one.
TEST_F(WorkerTest, ARankThatFailedBeforeAllEndedIsAFailureOfItsJob) {
  Connect("a", 2);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Send(Report(job, 1, v1::RANK_STATE_FAILED));
  Do(CoordinatorRestarted{});
  Do(WorkersGone{});
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(job).failures(), 1);
}

TEST_F(WorkerTest, HelloDeliversEndsThatWereMissed) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(WorkerStreamLost{"workers/a"});
  v1::Hello hello = MakeHello("a", 1, 1);
  *hello.add_ranks() = Report(job, 0, v1::RANK_STATE_SUCCEEDED);
  Clear();
  Do(WorkerHello{hello});
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Forgets(), 1);
}

TEST_F(WorkerTest, OneThatHasBeenDownForLongIsForgotten) {
  Connect("a", 1);
  Connect("b", 1);
  Advance(config.lease);
  ASSERT_EQ(Worker("a").state(), v1::WORKER_STATE_DOWN);
  now += config.forget_worker_after - absl::Seconds(1);
  Connect("b", 1);
  Connect("c", 1);
  EXPECT_NE(state.FindWorker("workers/a"), nullptr);
  now += absl::Seconds(1);
  Connect("d", 1);
  EXPECT_EQ(state.FindWorker("workers/a"), nullptr);
  EXPECT_NE(state.FindWorker("workers/b"), nullptr) << "it was back in time";
  Connect("a", 1);
  const std::string job = Submit(4);
  EXPECT_EQ(Record(job).ranks_size(), 4) << "it is as good as new";
}

TEST_F(WorkerTest, NothingIsWrittenOnlyToForget) {
  Connect("a", 1);
  Advance(config.lease);
  now += config.forget_worker_after;
  EXPECT_FALSE(Do(Tick{}).NeedsWrite());
  EXPECT_NE(state.FindWorker("workers/a"), nullptr);
  Connect("b", 1);
  Advance(config.lease);  // is written: b is down
  EXPECT_EQ(state.FindWorker("workers/a"), nullptr);
}

TEST_F(WorkerTest, WhatSomebodyHasDecidedAboutAHostIsNotForgotten) {
  for (const char* id : {"drained", "excluded", "spot"}) Connect(id, 1);
  Do(WorkerDrained{"workers/drained", "new memory", now});
  v1::WorkerRecord excluded = *state.FindWorker("workers/excluded");
  excluded.mutable_worker()->mutable_exclusion()->set_reason("3 failures");
  state.PutWorker(excluded);
  Do(SpotNoticed{"workers/spot", {}});
  Advance(config.lease);
  now += config.forget_worker_after;
  Connect("new", 1);
  EXPECT_NE(state.FindWorker("workers/drained"), nullptr);
  EXPECT_NE(state.FindWorker("workers/excluded"), nullptr);
  EXPECT_EQ(state.FindWorker("workers/spot"), nullptr);
}

TEST_F(WorkerTest, OneThatIsDownCanBeDeleted) {
  Connect("a", 1);
  Do(WorkerDrained{"workers/a", "new memory", now});
  const absl::Status alive = Do(WorkerDeleted{"workers/a"}).status;
  EXPECT_EQ(ReasonOf(alive), v1::ERROR_REASON_WORKER_NOT_DOWN) << alive;
  EXPECT_THAT(std::string(alive.message()), HasSubstr("is DRAINED; only a worker that is DOWN"));
  Advance(config.lease);
  EXPECT_TRUE(Do(WorkerDeleted{"workers/a"}).status.ok());
  EXPECT_EQ(state.FindWorker("workers/a"), nullptr);
  EXPECT_EQ(ReasonOf(Do(WorkerDeleted{"workers/a"}).status), v1::ERROR_REASON_WORKER_NOT_FOUND);
  Do(WorkerHeartbeat{"workers/a"});  // of a stream that was still open
  Do(Tick{});
  EXPECT_EQ(state.FindWorker("workers/a"), nullptr);
  Connect("a", 1);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_READY) << "as good as new";
}

TEST_F(WorkerTest, OneThatLeavesIsDownSinceThen) {
  Connect("a", 1);
  Do(WorkerLeaving{"workers/a", "SIGTERM"});
  Do(WorkerStreamLost{"workers/a"});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DOWN);
  EXPECT_EQ(FromProto(Worker("a").lease_expire_time()), now);
  EXPECT_TRUE(Do(WorkerDeleted{"workers/a"}).status.ok());
}

// The ranks of the attempt name it until the others have gone as well.
TEST_F(WorkerTest, OneWhoseAttemptIsEndingCannotBeDeletedYet) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  now += config.lease - absl::Seconds(1);
  Do(WorkerHeartbeat{"workers/b"});
  Advance(absl::Seconds(1));
  ASSERT_EQ(Worker("a").state(), v1::WORKER_STATE_DOWN);
  ASSERT_GT(Record(job).ranks_size(), 0);
  const absl::Status refused = Do(WorkerDeleted{"workers/a"}).status;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(job + " that had ranks on workers/a"));
  Do(RankReported{"workers/b", Report(job, 1, v1::RANK_STATE_STOPPED)});
  ASSERT_EQ(Record(job).ranks_size(), 0);
  EXPECT_TRUE(Do(WorkerDeleted{"workers/a"}).status.ok());
}

// As if each had been decided on and applied before the next.
TEST_F(WorkerTest, DeletedAndBackInOneDecision) {
  Connect("a", 1);
  Do(WorkerDrained{"workers/a", "new memory", now});
  Advance(config.lease);
  const std::vector<Event> events = {WorkerDeleted{"workers/a"}, WorkerDeleted{"workers/a"}, Tick{},
                                     LeasesLengthened{config.lease},
                                     WorkerHello{MakeHello("a", 1, 1)}};
  const Outcome outcome = DecideAll(state, events, now, config);
  EXPECT_TRUE(outcome.results[0].status.ok());
  EXPECT_TRUE(absl::IsNotFound(outcome.results[1].status));
  EXPECT_TRUE(outcome.forgotten_workers.empty());
  Apply(outcome);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_READY) << "and not drained any more";
}

// Whoever is heard in the very decision in which the time is up is still known.
TEST_F(WorkerTest, OneThatComesBackAtTheLastMomentStays) {
  Connect("a", 1);
  Advance(config.lease);
  now += config.forget_worker_after;
  const std::vector<Event> events = {WorkerHello{MakeHello("b", 1, 1)},
                                     WorkerHello{MakeHello("a", 1, 1)}};
  Apply(DecideAll(state, events, now, config));
  ASSERT_NE(state.FindWorker("workers/a"), nullptr);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_READY);
}

}  // namespace
}  // namespace milepost::coordinator
