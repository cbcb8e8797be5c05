// Jobs: scheduling, failures, cancelling, resuming.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class JobTest : public ::testing::Test, public FakeCluster {
 protected:
  void TearDown() override { EXPECT_EQ(violation, ""); }

  v1::RankReport Failed(const std::string& job, int rank, const std::string& message,
                        bool peer_lost = false) const {
    v1::RankReport report = Report(job, rank, v1::RANK_STATE_FAILED);
    report.set_message(message);
    report.set_peer_lost(peer_lost);
    report.set_failure_class(peer_lost ? v1::FAILURE_CLASS_NETWORK : v1::FAILURE_CLASS_INTERNAL);
    return report;
  }
  int Starts() const { return Count(&v1::CoordinatorMessage::has_start_rank); }
  int Stops() const { return Count(&v1::CoordinatorMessage::has_stop_rank); }
  int Forgets() const { return Count(&v1::CoordinatorMessage::has_forget_rank); }
  bool LastStopGraceful() const { return sent.back().message.stop_rank().graceful(); }
  bool LastStopAborts() const { return sent.back().message.stop_rank().abort(); }
};

TEST_F(JobTest, RunsFromSubmitToSuccess) {
  const std::string job = Submit(2);
  EXPECT_EQ(job, "jobs/1");
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_WAITING_FOR_SLOTS);
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("needs 2 cpu slots; no worker is ready"));

  Connect("a", 2);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job(job).generation(), 1);
  ASSERT_EQ(Starts(), 2);
  EXPECT_EQ(sent[1].message.start_rank().world(), 2);
  EXPECT_EQ(sent[1].message.start_rank().rank(), 1);
  EXPECT_EQ(sent[1].message.start_rank().slot(), 1);

  ReportAll(job, v1::RANK_STATE_STARTING);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
  Send(Report(job, 0, v1::RANK_STATE_RUNNING));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
  Send(Report(job, 1, v1::RANK_STATE_RUNNING));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);

  Send(Report(job, 0, v1::RANK_STATE_SUCCEEDED));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  Send(Report(job, 1, v1::RANK_STATE_SUCCEEDED));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Forgets(), 2);
  EXPECT_EQ(Stops(), 0);
  EXPECT_TRUE(Job(job).has_end_time());
}

v1::RankPosition InCall(int64_t begun, bool timed_out, const std::string& place) {
  v1::RankPosition position;
  position.set_place(place);
  v1::CollectivePosition* call = position.add_collectives();
  call->set_group("gloo:0");
  call->set_description("default_pg");
  call->set_begun(begun);
  call->set_completed(8);
  call->set_timed_out(timed_out);
  return position;
}

TEST_F(JobTest, ARankThatOthersWaitedForIsNamed) {
  Connect("a", 2);
  const std::string job = Submit(2);
  v1::RankReport waited = Failed(job, 0, "timed out");
  *waited.mutable_position() = InCall(9, true, "train.py:3 (main)");
  Send(waited);
  v1::RankReport aborted = Failed(job, 1, "another rank is lost", /*peer_lost=*/true);
  *aborted.mutable_position() = InCall(8, false, std::string(5000, 'x'));
  Send(aborted);
  const std::string message = Job(job).first_failure().message();
  EXPECT_THAT(message, HasSubstr("1 rank waited in a call (call 9 of default_pg) for rank 1 on "));
  EXPECT_THAT(message, HasSubstr("xxx. Rank 0 said: timed out"));
  EXPECT_LT(message.size(), 600u) << "what a worker says is bounded";
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("waited in a call"));
}

TEST_F(JobTest, SameRequestIdGivesTheSameJob) {
  JobSubmitted submit{.request_id = "r1", .uid = "u", .spec = Spec(1)};
  EXPECT_EQ(Do(submit).job, "jobs/1");
  EXPECT_EQ(Do(submit).job, "jobs/1");
  EXPECT_EQ(state.jobs().size(), 1u);
  submit.request_id = "r2";
  EXPECT_EQ(Do(submit).job, "jobs/2");
}

TEST_F(JobTest, StrictlyFirstComeFirstServed) {
  Connect("a", 4);
  const std::string first = Submit(3);
  const std::string big = Submit(4);
  const std::string small = Submit(1);
  EXPECT_EQ(Job(first).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job(big).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job(small).state(), v1::JOB_STATE_QUEUED);  // would fit, but came later
  EXPECT_THAT(Job(big).reason_detail(), HasSubstr("needs 4 cpu slots; 1 of 4"));
  EXPECT_THAT(Job(small).reason_detail(), HasSubstr("jobs/2 is next"));
  ReportAll(first, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(Job(big).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job(small).state(), v1::JOB_STATE_QUEUED);
  ReportAll(big, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(Job(small).state(), v1::JOB_STATE_STARTING);
}

TEST_F(JobTest, FailedRankStopsTheOthersAndTheNextGenerationFollows) {
  Connect("a", 2);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(CheckpointsChanged{job, "checkpoints/5", 50});
  Clear();
  Send(Failed(job, 1, "boom"));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_RANK_FAILED);
  ASSERT_EQ(Stops(), 1);
  EXPECT_FALSE(LastStopGraceful());

  v1::RankReport killed = Report(job, 0, v1::RANK_STATE_FAILED);
  killed.set_signal(9);
  Send(killed);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_BACKING_OFF);
  EXPECT_EQ(Job(job).failures(), 1);
  EXPECT_EQ(Job(job).first_failure().message(), "boom");
  const absl::Time next = FromProto(Job(job).next_attempt_time());
  EXPECT_EQ(NextDeadline(state), next);

  Clear();
  Do(WorkerHeartbeat{"workers/a"});
  Advance(next - now - absl::Milliseconds(1));
  EXPECT_EQ(Starts(), 0);
  Advance(absl::Milliseconds(1));
  ASSERT_EQ(Starts(), 2);
  EXPECT_EQ(Job(job).generation(), 2);
  EXPECT_EQ(sent[0].message.start_rank().checkpoint(), "checkpoints/5");
}

TEST_F(JobTest, FirstFailureIsTheEarliestThatIsNotAConsequence) {
  Connect("a", 3);
  const std::string job = Submit(3);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Send(Failed(job, 0, "lost a peer", /*peer_lost=*/true));
  EXPECT_EQ(Job(job).first_failure().rank(), 0);
  v1::RankReport late = Failed(job, 1, "late");
  late.mutable_time()->set_seconds(late.time().seconds() + 5);
  Send(late);
  EXPECT_EQ(Job(job).first_failure().message(), "late");
  v1::RankReport root = Failed(job, 2, "root");
  root.mutable_time()->set_seconds(root.time().seconds() + 2);
  Send(root);
  EXPECT_EQ(Job(job).first_failure().message(), "root");
  EXPECT_EQ(Job(job).first_failure().class_(), v1::FAILURE_CLASS_INTERNAL);
}

TEST_F(JobTest, BackoffDoublesToTheCapAndTheBudgetEnds) {
  Connect("a", 1);
  JobSubmitted submit{.spec = Spec(1)};
  submit.spec.mutable_restart()->set_max_failures(8);
  const std::string job = Do(submit).job;
  for (int expected : {1, 2, 4, 8, 16, 32, 60, 60}) {
    Send(Failed(job, 0, "boom"));
    ASSERT_EQ(Job(job).reason(), v1::JOB_REASON_BACKING_OFF);
    EXPECT_EQ(NextDeadline(state) <= now + absl::Seconds(5), true);
    const absl::Duration pause = FromProto(Job(job).next_attempt_time()) - now;
    EXPECT_GE(pause, absl::Seconds(expected) * 0.75);
    EXPECT_LE(pause, absl::Seconds(expected));
    now += absl::Seconds(expected);
    Connect("a", 1);
    Do(Tick{});
    ASSERT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
  }
  Send(Failed(job, 0, "boom"));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_BUDGET_EXHAUSTED);
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("boom"));
}

// Nobody knows which of the two hosts is to blame.
TEST_F(JobTest, TwoFailuresInARowMoveAJobToOtherHosts) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  const auto workers = [&] {
    std::set<std::string> names;
    for (const v1::RankRecord& rank : Record(job).ranks()) names.insert(rank.worker());
    return names;
  };
  const auto fail = [&] {
    for (int rank = 0; rank < 2; ++rank) {
      Send(Failed(job, rank, "cannot reach the other", /*peer_lost=*/true));
    }
    now += absl::Seconds(4);
    for (const char* id : {"a", "b", "c", "d"}) Do(WorkerHeartbeat{WorkerName(id)});
    Do(Tick{});
    ASSERT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
  };
  const std::set<std::string> first = {"workers/a", "workers/b"};
  const std::set<std::string> others = {"workers/c", "workers/d"};
  fail();
  fail();
  EXPECT_EQ(workers(), first) << "there are no others";
  Do(CheckpointsChanged{job, "checkpoints/1", 10});
  Connect("c", 1);
  Connect("d", 1);
  fail();
  EXPECT_EQ(workers(), first) << "their memory may have its state";
  fail();
  EXPECT_EQ(workers(), others);
}

TEST_F(JobTest, JobsThatFailTogetherDoNotStartTogether) {
  constexpr int kJobs = 8;
  Connect("a", kJobs);
  std::vector<std::string> jobs;
  for (int i = 0; i < kJobs; ++i) jobs.push_back(Submit(1));
  std::set<absl::Time> seen;
  absl::Time first = absl::InfiniteFuture();
  absl::Time last = absl::InfinitePast();
  for (const std::string& job : jobs) {
    Send(Failed(job, 0, "the switch is gone"));
    const absl::Time next = FromProto(Job(job).next_attempt_time());
    seen.insert(next);
    first = std::min(first, next);
    last = std::max(last, next);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kJobs));
  EXPECT_GE(last - first, absl::Milliseconds(100)) << "of 250";
}

TEST_F(JobTest, ProgressGivesTheBudgetBack) {
  Connect("a", 1);
  const std::string job = Submit(1);
  for (int round = 1; round <= 10; ++round) {  // max_failures is 3
    Do(CheckpointsChanged{job, "checkpoints/1", round * 10});
    Send(Failed(job, 0, "boom"));
    ASSERT_EQ(Job(job).failures(), 1) << round;
    Connect("a", 1);
    Advance(absl::Seconds(1));
  }
  // Falling back to an older checkpoint and getting no further is not progress.
  Do(CheckpointsChanged{job, "checkpoints/1", 50});
  Do(CheckpointsChanged{job, "checkpoints/2", 100});
  Send(Failed(job, 0, "boom"));
  EXPECT_EQ(Job(job).failures(), 2);
}

TEST_F(JobTest, UserErrorIsNotRetried) {
  Connect("a", 1);
  const std::string job = Submit(1);
  v1::RankReport report = Failed(job, 0, "no such file");
  report.set_failure_class(v1::FAILURE_CLASS_USER);
  Send(report);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("no such file"));
}

TEST_F(JobTest, BackingOffJobKeepsItsSlots) {
  Connect("a", 2);
  const std::string first = Submit(2);
  const std::string second = Submit(1);
  Send(Failed(first, 0, "boom"));
  Send(Failed(first, 1, "peer", /*peer_lost=*/true));
  EXPECT_EQ(Job(first).reason(), v1::JOB_REASON_BACKING_OFF);
  EXPECT_EQ(Job(second).state(), v1::JOB_STATE_QUEUED);
  Connect("b", 1);  // one slot more: enough for both
  EXPECT_EQ(Job(second).state(), v1::JOB_STATE_STARTING);
  Advance(absl::Seconds(1));
  EXPECT_EQ(Job(first).state(), v1::JOB_STATE_STARTING);
}

TEST_F(JobTest, CancelsInEveryState) {
  const std::string queued = Submit(1);
  Do(JobCancelled{queued});
  EXPECT_EQ(Job(queued).state(), v1::JOB_STATE_CANCELLED);

  Connect("a", 2);
  const std::string running = Submit(2);
  ReportAll(running, v1::RANK_STATE_RUNNING);
  Clear();
  Do(JobCancelled{running});
  EXPECT_EQ(Job(running).state(), v1::JOB_STATE_CANCELLING);
  EXPECT_TRUE(Job(running).cancel_requested());
  ASSERT_EQ(Stops(), 2);
  EXPECT_TRUE(LastStopGraceful());
  Do(JobCancelled{running});  // idempotent
  EXPECT_EQ(Stops(), 2);
  ReportAll(running, v1::RANK_STATE_STOPPED);
  EXPECT_EQ(Job(running).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Job(running).failures(), 0);
  Do(JobCancelled{running});
  EXPECT_EQ(Job(running).state(), v1::JOB_STATE_CANCELLED);

  const std::string backing_off = Submit(1);
  Send(Failed(backing_off, 0, "boom"));
  Do(JobCancelled{backing_off});
  EXPECT_EQ(Job(backing_off).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Do(JobCancelled{"jobs/99"}).status.code(), absl::StatusCode::kNotFound);
}

TEST_F(JobTest, GracefulStopThatTakesTooLongIsAbortedAndThenKilled) {
  Connect("a", 1);
  const std::string job = Submit(1);
  Do(JobCancelled{job});
  Clear();
  now += config.graceful_stop;
  Connect("a", 1);  // says that it has no such rank: it never started
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_CANCELLED);

  const std::string second = Submit(1);
  Send(Report(second, 0, v1::RANK_STATE_RUNNING));
  Do(JobCancelled{second});
  Clear();
  now += config.graceful_stop - absl::Seconds(1);
  Do(WorkerHeartbeat{"workers/a"});
  Advance(absl::Seconds(1));  // no checkpoint, but it may keep its state in memory
  ASSERT_EQ(Stops(), 1);
  EXPECT_TRUE(LastStopAborts());
  now += config.abort_stop - absl::Seconds(1);
  Do(WorkerHeartbeat{"workers/a"});
  Advance(absl::Seconds(1));
  ASSERT_EQ(Stops(), 2);
  EXPECT_FALSE(LastStopGraceful());
  EXPECT_FALSE(LastStopAborts());
}

TEST_F(JobTest, SuccessBeatsCancel) {
  Connect("a", 1);
  const std::string job = Submit(1);
  Do(JobCancelled{job});
  Send(Report(job, 0, v1::RANK_STATE_SUCCEEDED));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(JobTest, ResumesOnlyWhatHasEnded) {
  Connect("a", 1);
  const std::string job = Submit(1);
  EXPECT_EQ(Do(JobResumed{.job = job}).status.code(), absl::StatusCode::kFailedPrecondition);
  Do(CheckpointsChanged{job, "checkpoints/3", 100});
  Send(Report(job, 0, v1::RANK_STATE_SUCCEEDED));
  Outcome refused = Do(JobResumed{.job = job, .new_steps = 100});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("100 steps"));
  EXPECT_TRUE(refused.jobs.empty());

  Clear();
  refused = Do(JobResumed{.job = job, .new_steps = std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument) << "no spec may";
  JobResumed resume{.job = job, .request_id = "x", .new_steps = 200};
  EXPECT_TRUE(Do(resume).status.ok());
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job(job).generation(), 2);
  EXPECT_EQ(sent[0].message.start_rank().spec().train().steps(), 200);
  EXPECT_EQ(sent[0].message.start_rank().checkpoint(), "checkpoints/3");
  EXPECT_TRUE(Do(resume).status.ok());  // the same request again
  EXPECT_EQ(Job(job).generation(), 2);
}

// A call that comes late, after later ones, does nothing more.
TEST_F(JobTest, ResumingRemembersRequestsOfAWhile) {
  Connect("a", 1);
  const std::string job = Submit(1);
  for (int i = 0; i < 18; ++i) {
    Do(JobCancelled{job});
    ReportAll(job, v1::RANK_STATE_STOPPED);
    ASSERT_TRUE(Do(JobResumed{.job = job, .request_id = absl::StrCat("r", i)}).status.ok());
  }
  EXPECT_EQ(Record(job).resume_request_ids_size(), 16);
  Do(JobCancelled{job});
  ReportAll(job, v1::RANK_STATE_STOPPED);
  for (const char* late : {"r2", "r17"}) {
    EXPECT_TRUE(Do(JobResumed{.job = job, .request_id = late}).status.ok());
    EXPECT_EQ(Job(job).state(), v1::JOB_STATE_CANCELLED) << late;
  }
  Do(JobResumed{.job = job, .request_id = "r1"});  // longer ago than is remembered
  EXPECT_NE(Job(job).state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(JobTest, NewJobStartsFromTheCheckpointItNames) {
  Connect("a", 1);
  JobSubmitted submit{.spec = Spec(1)};
  submit.spec.mutable_checkpoint()->set_resume_from("checkpoints/9");
  Do(submit);
  EXPECT_EQ(sent[0].message.start_rank().checkpoint(), "checkpoints/9");
}

TEST_F(JobTest, CountsOnlyProductiveTimeThatSurvives) {
  Connect("a", 1);
  const std::string job = Submit(1);
  v1::RankProgress progress;
  progress.set_job(job);
  progress.set_generation(1);
  progress.mutable_progress()->set_step(80);
  progress.mutable_progress()->set_productive_seconds(8);
  Do(RankProgressed{"workers/a", progress});
  EXPECT_EQ(Job(job).productive_seconds(), 8);
  Do(CheckpointsChanged{job, "checkpoints/1", 60});
  Send(Failed(job, 0, "boom"));
  EXPECT_EQ(Job(job).productive_seconds(), 6);
  progress.set_generation(7);  // of no attempt that there is
  progress.mutable_progress()->set_step(1);
  Do(RankProgressed{"workers/a", progress});
  EXPECT_EQ(Job(job).progress().step(), 80);
}

TEST_F(JobTest, ProgressAndHeartbeatsAreNotWritten) {
  Connect("a", 1);
  const std::string job = Submit(1);
  v1::RankProgress progress;
  progress.set_job(job);
  progress.set_generation(1);
  EXPECT_FALSE(Do(RankProgressed{"workers/a", progress}).NeedsWrite());
  EXPECT_FALSE(Do(WorkerHeartbeat{"workers/a"}).NeedsWrite());
  EXPECT_TRUE(Do(JobCancelled{job}).NeedsWrite());
}

}  // namespace
}  // namespace milepost::coordinator
