// The decisions behind `milepost run`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "client/cli/run_choice.h"
#include "client/cli/run_report.h"
#include "client/cli/stored_job.h"
#include "client/cli/supervisor.h"
#include "common/spec/validate.h"

namespace milepost::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JobSpec Spec(int64_t steps, double lr = 1e-3) {
  v1::JobSpec spec;
  spec.set_name("a");
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->mutable_optimizer()->set_lr(lr);
  NormalizeJobSpec(&spec);
  return spec;
}

v1::Job JobOf(const std::string& name, const v1::JobSpec& spec, v1::JobState state,
              int64_t step = 0) {
  v1::Job job;
  job.set_name(name);
  *job.mutable_spec() = spec;
  job.set_state(state);
  job.mutable_progress()->set_step(step);
  return job;
}

TEST(ChooseRunTest, SubmitsWhatIsNew) {
  EXPECT_EQ(ChooseRun(Spec(10), {}).action, RunChoice::kSubmit);
  const auto other = JobOf("jobs/1", Spec(10, 5e-3), v1::JOB_STATE_SUCCEEDED, 10);
  const RunChoice choice = ChooseRun(Spec(10), {other});
  EXPECT_EQ(choice.action, RunChoice::kSubmit);
  EXPECT_THAT(choice.set_aside, IsEmpty());
}

TEST(ChooseRunTest, GoesOnWithAnUnfinishedJobAndSetsOthersAside) {
  const RunChoice choice =
      ChooseRun(Spec(10), {JobOf("jobs/3", Spec(10, 5e-3), v1::JOB_STATE_QUEUED),
                           JobOf("jobs/2", Spec(10), v1::JOB_STATE_RECOVERING, 4),
                           JobOf("jobs/1", Spec(10, 7e-3), v1::JOB_STATE_FAILED),
                           JobOf("jobs/0", Spec(10, 8e-3), v1::JOB_STATE_SUSPENDED)});
  EXPECT_EQ(choice.action, RunChoice::kAttach);
  EXPECT_EQ(choice.job.name(), "jobs/2");
  EXPECT_THAT(choice.set_aside, ElementsAre("jobs/3"));
  EXPECT_EQ(choice.note, "");
  const RunChoice longer = ChooseRun(Spec(20), {JobOf("jobs/2", Spec(10), v1::JOB_STATE_RUNNING)});
  EXPECT_EQ(longer.action, RunChoice::kAttach);
  EXPECT_THAT(longer.note, HasSubstr("run again afterwards"));
}

// The file still says `auto`; the job has what was chosen when it was submitted.
TEST(ChooseRunTest, FindsTheJobOfASpecWithAutoFields) {
  v1::JobSpec submitted = Spec(10);
  submitted.mutable_train()->set_recompute(v1::RECOMPUTE_AUTO);
  v1::Job job = JobOf("jobs/2", Spec(10), v1::JOB_STATE_FAILED, 4);
  EXPECT_EQ(ChooseRun(submitted, {job}).action, RunChoice::kSubmit);
  *job.mutable_submitted_spec() = submitted;
  EXPECT_EQ(ChooseRun(submitted, {job}).action, RunChoice::kResume);
  EXPECT_EQ(ChooseRun(submitted, {job}).job.spec().train().recompute(), v1::RECOMPUTE_NONE);
}

TEST(ChooseRunTest, SaysSoWhenItIsDoneAndExtendsWhenMoreIsWanted) {
  const auto done = JobOf("jobs/1", Spec(10), v1::JOB_STATE_SUCCEEDED, 10);
  const auto other = JobOf("jobs/2", Spec(10, 5e-3), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(ChooseRun(Spec(10), {other, done}).action, RunChoice::kDone);
  EXPECT_THAT(ChooseRun(Spec(10), {other, done}).set_aside, IsEmpty());
  EXPECT_EQ(ChooseRun(Spec(10), {done}).note, "");
  EXPECT_EQ(ChooseRun(Spec(5), {done}).action, RunChoice::kDone);
  EXPECT_THAT(ChooseRun(Spec(5), {done}).note,
              HasSubstr("has made 10 steps, more than the 5 of the spec; --fresh"));
  const RunChoice more = ChooseRun(Spec(20), {done});
  EXPECT_EQ(more.action, RunChoice::kResume);
  EXPECT_EQ(more.new_steps, 20);
  EXPECT_EQ(more.how, "extending");
}

TEST(ChooseRunTest, ResumesWhatFailedOrWasCancelled) {
  for (const auto state : {v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLED}) {
    const RunChoice choice = ChooseRun(Spec(10), {JobOf("jobs/1", Spec(10), state, 5)});
    EXPECT_EQ(choice.action, RunChoice::kResume);
    EXPECT_EQ(choice.new_steps, std::nullopt);
    EXPECT_EQ(ChooseRun(Spec(8), {JobOf("jobs/1", Spec(10), state, 5)}).new_steps, 8);
    const RunChoice fewer = ChooseRun(Spec(4), {JobOf("jobs/1", Spec(10), state, 5)});
    EXPECT_EQ(fewer.new_steps, std::nullopt);
    EXPECT_THAT(fewer.note, HasSubstr("already made 5 steps"));
  }
}

// Nothing else would ever start it.
TEST(ChooseRunTest, ResumesWhatIsSuspended) {
  for (const auto state : {v1::JOB_STATE_SUSPENDED, v1::JOB_STATE_SUSPENDING}) {
    const RunChoice choice = ChooseRun(Spec(20), {JobOf("jobs/1", Spec(10), state, 5)});
    EXPECT_EQ(choice.action, RunChoice::kResume);
    EXPECT_EQ(choice.how, "resuming");
    EXPECT_EQ(choice.new_steps, 20);
  }
}

TEST(ChooseRunTest, FreshLeavesEveryOtherJobAsItIs) {
  const RunChoice choice = ChooseRun(Spec(10),
                                     {JobOf("jobs/4", Spec(10), v1::JOB_STATE_QUEUED),
                                      JobOf("jobs/3", Spec(10, 5e-3), v1::JOB_STATE_RUNNING),
                                      JobOf("jobs/2", Spec(20), v1::JOB_STATE_SUCCEEDED, 20),
                                      JobOf("jobs/1", Spec(10, 7e-3), v1::JOB_STATE_SUCCEEDED, 10)},
                                     /*fresh=*/true);
  EXPECT_EQ(choice.action, RunChoice::kSubmit);
  EXPECT_EQ(choice.how, "started");
  std::vector<std::string> replaced;
  for (const v1::Job& job : choice.replaced) replaced.push_back(job.name());
  EXPECT_THAT(replaced, ElementsAre("jobs/4", "jobs/2"));
  EXPECT_THAT(choice.set_aside, ElementsAre("jobs/3"));
}

// What a job computes is its lineage; when it runs is changed by `job update`.
TEST(ChooseRunTest, SaysThatAnotherSchedulingDoesNotCount) {
  v1::JobSpec wanted = Spec(10);
  wanted.mutable_scheduling()->set_queue("night");
  for (const auto state : {v1::JOB_STATE_QUEUED, v1::JOB_STATE_FAILED}) {
    EXPECT_THAT(ChooseRun(wanted, {JobOf("jobs/1", Spec(10), state)}).note,
                HasSubstr("jobs/1 keeps its own `scheduling`: milepost job update jobs/1"));
  }
  EXPECT_EQ(ChooseRun(wanted, {JobOf("jobs/1", wanted, v1::JOB_STATE_QUEUED)}).note, "");
}

TEST(ChooseJobsTest, TheFirstIsTheRunsOwnAndTheRestWaitBehindIt) {
  const std::vector<v1::Job> jobs = {JobOf("jobs/4", Spec(10), v1::JOB_STATE_QUEUED),
                                     JobOf("jobs/3", Spec(20), v1::JOB_STATE_CANCELLED),
                                     JobOf("jobs/2", Spec(30), v1::JOB_STATE_SUSPENDED),
                                     JobOf("jobs/1", Spec(40), v1::JOB_STATE_SUCCEEDED, 40)};
  auto choice = ChooseJobs({"jobs/3", "jobs/2"}, jobs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->job.name(), "jobs/3");
  EXPECT_EQ(choice->action, RunChoice::kResume);
  ASSERT_EQ(choice->also.size(), 1U);
  EXPECT_EQ(choice->also[0].name(), "jobs/2");
  EXPECT_THAT(choice->set_aside, ElementsAre("jobs/4"));
  EXPECT_EQ(ChooseJobs({"jobs/2"}, jobs)->action, RunChoice::kResume);
  EXPECT_EQ(ChooseJobs({"jobs/4"}, jobs)->action, RunChoice::kAttach);
  EXPECT_EQ(ChooseJobs({"jobs/1"}, jobs)->action, RunChoice::kDone);
  EXPECT_EQ(ChooseJobs({"jobs/4", "jobs/9"}, jobs).status(),
            absl::NotFoundError("there is no job jobs/9"));
}

TEST(WaitingJobsTest, AreThoseOfTheRunThatCanRunHereAndWhyTheOthersDoNot) {
  v1::Job large = JobOf("jobs/6", Spec(10), v1::JOB_STATE_QUEUED);
  large.mutable_spec()->mutable_resources()->set_ranks(4);
  v1::Job behind = JobOf("jobs/5", Spec(10), v1::JOB_STATE_QUEUED);
  behind.mutable_spec()->mutable_scheduling()->add_depends_on("jobs/4");
  v1::Job never = JobOf("jobs/7", Spec(10), v1::JOB_STATE_QUEUED);
  never.mutable_spec()->mutable_scheduling()->add_depends_on("jobs/1");
  v1::Job elsewhere = JobOf("jobs/8", Spec(10), v1::JOB_STATE_QUEUED);
  elsewhere.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  std::vector<std::string> told;
  for (const WaitingJob& one : WaitingJobs(
           {elsewhere, never, large, behind, JobOf("jobs/4", Spec(10), v1::JOB_STATE_QUEUED),
            JobOf("jobs/3", Spec(10), v1::JOB_STATE_SUSPENDED),
            JobOf("jobs/2", Spec(10), v1::JOB_STATE_QUEUED),
            JobOf("jobs/1", Spec(10), v1::JOB_STATE_FAILED)},
           {v1::DEVICE_KIND_CPU, 2}, {"jobs/1", "jobs/2"})) {
    told.push_back(one.job.name() + ": " + one.why);
  }
  EXPECT_THAT(told, ElementsAre("jobs/2: there before this run", "jobs/3: suspended",
                                "jobs/4: ", "jobs/5: ", "jobs/6: needs 4 slots, and there are 2",
                                "jobs/7: depends on jobs/1, which has not succeeded",
                                "jobs/8: for another kind of device"));
}

TEST(StoredJobTest, WhatNothingRunsIsNotRunning) {
  v1::Job job = JobOf("jobs/1", Spec(100), v1::JOB_STATE_RUNNING, 90);
  job.set_reason(v1::JOB_REASON_RANK_FAILED);
  job.add_placements()->set_worker("workers/local-0");
  EXPECT_TRUE(MarkNotRunning(&job));
  EXPECT_EQ(job.state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(job.reason(), v1::JOB_REASON_UNSPECIFIED);
  EXPECT_EQ(job.reason_detail(), "not running; last seen at step 90");
  EXPECT_EQ(job.placements_size(), 0);
  v1::Job waiting = JobOf("jobs/2", Spec(100), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(MarkNotRunning(&waiting));
  v1::Job ended = JobOf("jobs/3", Spec(100), v1::JOB_STATE_FAILED, 9);
  EXPECT_FALSE(MarkNotRunning(&ended));
  EXPECT_EQ(ended.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(NotRunningText({ended, waiting, job}, " --data-dir d"),
            "jobs/1 (last seen at step 90), jobs/2 are not running; to go on: milepost run --job "
            "jobs/1 --job jobs/2 --data-dir d");
  EXPECT_EQ(NotRunningText({ended}, ""), "");
}

constexpr ExitResult kKilled = {0, SIGKILL};
constexpr ExitResult kError = {1, 0};

TEST(RestartPolicyTest, AnErrorAtStartIsFinalButALaterOneIsNot) {
  EXPECT_EQ(RestartPolicy().OnExit(absl::Seconds(1), kError), std::nullopt);
  RestartPolicy proven;
  EXPECT_NE(proven.OnExit(absl::Seconds(3), kError), std::nullopt);
  EXPECT_NE(proven.OnExit(absl::Seconds(1), kError), std::nullopt);
}

TEST(RestartPolicyTest, BacksOffAndGivesUpWhenLivesStayShort) {
  RestartPolicy policy;
  absl::Duration last = absl::ZeroDuration();
  for (int i = 0; i < 8; ++i) {
    const auto delay = policy.OnExit(absl::Milliseconds(100), kKilled);
    ASSERT_NE(delay, std::nullopt) << i;
    EXPECT_GT(*delay, last);
    EXPECT_LE(*delay, absl::Seconds(3));
    last = *delay == absl::Seconds(2) ? last : *delay;
  }
  EXPECT_EQ(policy.OnExit(absl::Milliseconds(100), kKilled), std::nullopt);
}

TEST(RestartPolicyTest, ALongLifeStartsTheCountAgain) {
  RestartPolicy policy;
  for (int i = 0; i < 50; ++i) {
    const auto lived = i % 8 == 7 ? absl::Seconds(10) : absl::Milliseconds(100);
    ASSERT_NE(policy.OnExit(lived, kKilled), std::nullopt) << i;
  }
  EXPECT_EQ(policy.OnExit(absl::Seconds(10), kKilled), absl::Milliseconds(20));
}

// Rank 0 may tell of a step before the last rank has started.
TEST(RunReportTest, AStepIsShownOnceTheJobIsRunning) {
  for (const ReportKind kind : {ReportKind::kPlain, ReportKind::kJson}) {
    const auto report = MakeRunReport(kind);
    ::testing::internal::CaptureStdout();
    report->Changed(JobOf("jobs/1", Spec(10), v1::JOB_STATE_STARTING), absl::Now());
    report->Changed(JobOf("jobs/1", Spec(10), v1::JOB_STATE_STARTING, 1), absl::Now());
    report->Changed(JobOf("jobs/1", Spec(10), v1::JOB_STATE_RUNNING, 1), absl::Now());
    const std::string out = ::testing::internal::GetCapturedStdout();
    const size_t running = out.find("RUNNING");
    const size_t step = out.find(kind == ReportKind::kPlain ? "step 1/10" : "\"progress\"");
    EXPECT_LT(out.find("STARTING"), running) << out;
    EXPECT_LT(running, step) << out;
    EXPECT_NE(step, std::string::npos) << out;
  }
}

RunSummary Summary() {
  RunSummary summary;
  summary.run_started = absl::FromUnixSeconds(1000);
  summary.job = JobOf("jobs/1", Spec(10), v1::JOB_STATE_SUCCEEDED, 10);
  summary.job.mutable_create_time()->set_seconds(1001);
  summary.job.mutable_end_time()->set_seconds(1011);
  summary.job.set_productive_seconds(8);
  summary.job.set_attempts(2);
  v1::Progress* progress = summary.job.mutable_progress();
  progress->set_train_loss(1.5);
  progress->set_validation_loss(std::nan(""));
  progress->set_tokens_per_second(1000);
  progress->set_planned_bytes(64);
  progress->set_allocated_bytes(64);
  progress->mutable_first_step_time()->set_seconds(1003);
  v1::Checkpoint checkpoint;
  checkpoint.set_name("checkpoints/1");
  checkpoint.set_step(10);
  summary.checkpoints.emplace({checkpoint});
  return summary;
}

TEST(FinishedJsonTest, HasEveryKey) {
  EXPECT_EQ(FinishedJson(Summary()).dump(),
            R"({"event":"finished","job":"jobs/1","state":"SUCCEEDED","step":10,"saved_step":10,)"
            R"("train_loss":1.5,)"
            R"("validation_loss":null,"unigram_loss":null,"tokens_per_second":1000.0,)"
            R"("first_step_seconds":3.0,"goodput":0.8,"planned_bytes":64,"allocated_bytes":64,)"
            R"("peak_resident_bytes":0,"required_bytes":0,)"
            R"("attempts":2,"failure":null,"checkpoints":[{"name":"checkpoints/1","step":10,)"
            R"("bytes":0,"damaged":false}]})");
}

TEST(FinishedJsonTest, SaysUpToWhereStepsAreSaved) {
  RunSummary summary = Summary();
  summary.checkpoints->back().set_step(7);
  EXPECT_EQ(FinishedJson(summary)["saved_step"], 10) << "of what has succeeded nothing is lost";
  summary.job.set_state(v1::JOB_STATE_QUEUED);
  EXPECT_EQ(FinishedJson(summary)["saved_step"], 7);
  summary.checkpoints->back().set_damaged(true);
  EXPECT_EQ(FinishedJson(summary)["saved_step"], 0);
  summary.job.mutable_forked_from()->set_step(4);
  EXPECT_EQ(FinishedJson(summary)["saved_step"], 4);
  summary.job.mutable_spec()->mutable_checkpoint()->set_resume_from("checkpoints/9");
  EXPECT_EQ(FinishedJson(summary)["saved_step"], 10) << "nobody knows";
  summary.checkpoints.reset();
  EXPECT_EQ(FinishedJson(summary)["saved_step"], 10) << "nobody knows";
}

TEST(FinishedJsonTest, AFirstStepOfAnEarlierRunDoesNotCount) {
  RunSummary summary = Summary();
  summary.run_started = absl::FromUnixSeconds(1005);
  EXPECT_TRUE(FinishedJson(summary)["first_step_seconds"].is_null());
  summary.job.set_state(v1::JOB_STATE_FAILED);
  summary.job.set_reason_detail("rank 0: out of memory");
  EXPECT_EQ(FinishedJson(summary)["failure"], "rank 0: out of memory");
  EXPECT_EQ(Goodput(v1::Job(), absl::Now()), 0);
}

}  // namespace
}  // namespace milepost::client
