// Hosts that fail: processes that cannot be killed, exclusion, health checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/fake_cluster.h"
#include "coordinator/core/wait_reason.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class HostHealthTest : public ::testing::Test, public FakeCluster {
 protected:
  HostHealthTest() { config.lease = absl::Minutes(1); }
  // Workers that are connected beat.
  void Advance(absl::Duration by) {
    const absl::Time end = now + by;
    do {
      now = std::min(end, now + config.lease / 2);
      const auto workers = state.workers();  // Do changes them
      for (const auto& [name, record] : workers) {
        if (IsConnected(record.worker())) Do(WorkerHeartbeat{name});
      }
      Do(Tick{});
    } while (now < end);
  }
  absl::Duration GiveUpTime() const { return config.lease + config.kill_wait; }
  void TearDown() override { EXPECT_EQ(violation, ""); }

  const v1::WorkerRecord& WorkerRecord(const std::string& id) const {
    return *state.FindWorker(WorkerName(id));
  }
  int Checks() const { return Count(&v1::CoordinatorMessage::has_check_health); }

  // A rank of the job fails by its host's fault, and the job starts again.
  void FailRank(const std::string& job) {
    v1::RankReport report = Report(job, 0, v1::RANK_STATE_FAILED);
    report.set_failure_class(v1::FAILURE_CLASS_DEVICE);
    report.set_message("XID 79");
    Send(report);
  }
  // As often as it takes on the one host that there is.
  std::string ExcludeHost() {
    config.backoff_cap = absl::Seconds(20);
    v1::JobSpec spec = Spec(1);
    spec.mutable_restart()->set_max_failures(100);
    const std::string job = Do(JobSubmitted{.spec = std::move(spec)}).job;
    for (int i = 0; i < config.exclude_after; ++i) {
      Advance(config.backoff_cap);
      FailRank(job);
    }
    return job;
  }
  void AnswerCheck(const std::string& id, const std::string& problem) {
    v1::HealthReport report;
    *report.mutable_exclusion_time() = Worker(id).exclusion().time();
    report.set_problem(problem);
    Do(HealthReported{WorkerName(id), report});
  }
  absl::Duration UntilNextCheck(const std::string& id) const {
    return FromProto(Worker(id).exclusion().next_check_time()) - now;
  }
};

// ---- processes that cannot be killed ----

TEST_F(HostHealthTest, AJobGoesOnWithoutAProcessThatCannotBeKilled) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::RankReport failed = Report(job, 1, v1::RANK_STATE_FAILED);
  const v1::RankReport stuck = Report(job, 0, v1::RANK_STATE_FAILED);
  Send(failed);
  Advance(config.abort_stop);
  EXPECT_EQ(Record(job).ranks(0).stop(), v1::STOP_KIND_KILL);
  EXPECT_EQ(FromProto(Record(job).stop_deadline()), now + GiveUpTime());
  Advance(GiveUpTime() - absl::Milliseconds(1));
  EXPECT_EQ(Record(job).ranks_size(), 2);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(Record(job).ranks_size(), 0);
  EXPECT_EQ(Job(job).failures(), 1);
  EXPECT_EQ(Job(job).first_failure().rank(), 1) << "the first failure is still the cause";

  // Its slot is not free before it has ended.
  Advance(absl::Seconds(1));
  ASSERT_EQ(WorkerRecord("a").stale_size(), 1);
  EXPECT_EQ(Job(job).generation(), 1);
  Clear();
  Do(RankReported{"workers/a", stuck});
  EXPECT_EQ(WorkerRecord("a").stale_size(), 0);
  EXPECT_EQ(Count(&v1::CoordinatorMessage::has_forget_rank), 1);
  EXPECT_EQ(Job(job).generation(), 2);
}

TEST_F(HostHealthTest, ANewWorkerProcessDoesNotFreeTheSlotOfOneThatOutlivedTheOld) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::Hello hello = MakeHello("a", 1, /*incarnation=*/2);
  *hello.add_ranks() = Report(job, 0, v1::RANK_STATE_RUNNING);
  const v1::RankReport ended = Report(job, 0, v1::RANK_STATE_FAILED);
  for (int i = 0; i < 2; ++i) {  // also when it restarts once more
    Do(WorkerHello{hello});
    EXPECT_EQ(Job(job).failures(), 1);
    EXPECT_EQ(WorkerRecord("a").stale_size(), 1);
    Advance(config.backoff_cap);
    EXPECT_EQ(Record(job).ranks_size(), 0);
    hello.set_incarnation(hello.incarnation() + 1);
  }
  Do(RankReported{"workers/a", ended});
  EXPECT_EQ(Job(job).generation(), 2);
}

TEST_F(HostHealthTest, ItsHostGetsOthersInItsOtherSlots) {
  Connect("a", 2);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  const int slot = Record(job).ranks(0).slot();
  Do(JobCancelled{job});
  Advance(config.graceful_stop);
  Advance(config.abort_stop);
  Advance(GiveUpTime());
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_CANCELLED);
  const std::string next = Submit(1);
  ASSERT_EQ(Record(next).ranks_size(), 1);
  EXPECT_NE(Record(next).ranks(0).slot(), slot);
  EXPECT_EQ(Record(Submit(1)).ranks_size(), 0);
}

TEST_F(HostHealthTest, WhetherARankOfALostStreamIsThereTheLeaseDecides) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(JobCancelled{job});
  Advance(config.graceful_stop);
  Advance(config.abort_stop);
  Advance(config.lease);
  Do(WorkerStreamLost{"workers/a"});
  Advance(config.kill_wait);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(FromProto(Record(job).stop_deadline()), now + GiveUpTime());
  Advance(config.lease);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(HostHealthTest, AWorkerIsDrainedWithoutIt) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(WorkerDrained{"workers/a", "upgrade", now});
  Advance(config.graceful_stop);
  Advance(config.abort_stop);
  Advance(GiveUpTime());
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINED);
}

// Whatever else is lost meanwhile.
TEST_F(HostHealthTest, AKilledProcessHasItsTimeToEnd) {
  Connect("a", 1);
  Connect("b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(JobCancelled{job});
  Advance(config.graceful_stop);
  Advance(config.abort_stop);
  const absl::Time killed = now;
  Connect("b", 1, /*incarnation=*/2);
  EXPECT_EQ(FromProto(Record(job).stop_deadline()), killed + GiveUpTime());
}

// What a rank keeps in its host's memory takes its time.
TEST_F(HostHealthTest, MuchStateHasLongerToBeKept) {
  Do(WorkerHello{MakeGpuHello("a", {"NVIDIA H200", "NVIDIA H200"})});
  v1::JobSpec spec = Spec(2);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  const std::string job =
      Do(JobSubmitted{.spec = std::move(spec), .slot_bytes = int64_t{40} << 30}).job;
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Send(Report(job, 1, v1::RANK_STATE_FAILED));
  EXPECT_EQ(NextDeadline(state), now + config.abort_stop + absl::Seconds(40));
}

// ---- exclusion ----

TEST_F(HostHealthTest, AHostThatFailsRepeatedlyIsExcludedUntilItPassesACheck) {
  Connect("a", 1);
  const std::string job = ExcludeHost();
  ASSERT_TRUE(Worker("a").has_exclusion());
  EXPECT_THAT(Worker("a").exclusion().reason(),
              HasSubstr("3 device or host failures within 1h, the last one of jobs/1"));
  Clear();
  Advance(absl::ZeroDuration());
  EXPECT_EQ(Checks(), 1) << "the first one is due at once";
  Advance(config.backoff_cap);
  EXPECT_EQ(Checks(), 1);
  EXPECT_EQ(Record(job).ranks_size(), 0);
  EXPECT_THAT(Job(job).reason_detail(),
              HasSubstr("workers/a is excluded until it passes a health check"));
  EXPECT_THAT(Job(job).reason_detail(),
              HasSubstr("; `milepost worker resume workers/a` takes it back without one"));
  AnswerCheck("a", "");
  EXPECT_FALSE(Worker("a").has_exclusion());
  EXPECT_EQ(Record(job).ranks_size(), 1);
}

TEST_F(HostHealthTest, AnotherHostTakesTheJobMeanwhile) {
  Connect("a", 1);
  const std::string job = ExcludeHost();
  Advance(config.backoff_cap);
  ASSERT_EQ(Record(job).ranks_size(), 0);
  Connect("b", 1);
  ASSERT_EQ(Record(job).ranks_size(), 1);
  EXPECT_EQ(Record(job).ranks(0).worker(), "workers/b");
}

TEST_F(HostHealthTest, ACheckThatFailsIsMadeAgainLater) {
  Connect("a", 1);
  const std::string job = ExcludeHost();
  Advance(config.backoff_cap);
  for (int minutes : {1, 2, 4, 8, 16, 30, 30}) {
    AnswerCheck("a", "disk: read-only");
    EXPECT_EQ(UntilNextCheck("a"), absl::Minutes(minutes));
    EXPECT_THAT(Job(job).reason_detail(),
                HasSubstr(absl::StrCat("; the last one found: disk: read-only; the next is at ",
                                       TimeText(now + absl::Minutes(minutes)))));
  }
  EXPECT_EQ(Worker("a").exclusion().failed_checks(), 7);
  Clear();
  Advance(absl::Minutes(30) - absl::Seconds(1));
  EXPECT_EQ(Checks(), 0);
  EXPECT_EQ(NextDeadline(state), now + absl::Seconds(1));
  Advance(absl::Seconds(1));
  EXPECT_EQ(Checks(), 1);
}

TEST_F(HostHealthTest, AnAnswerThatDoesNotComeIsAskedForAgain) {
  Connect("a", 1);
  ExcludeHost();
  Advance(absl::ZeroDuration());
  Clear();
  Do(WorkerStreamLost{"workers/a"});
  Advance(absl::Minutes(2));
  EXPECT_EQ(Checks(), 0) << "it cannot be asked";
  EXPECT_GT(NextDeadline(state), now);
  Connect("a", 1);
  EXPECT_LE(NextDeadline(state), now);
  Advance(absl::ZeroDuration());
  EXPECT_EQ(Checks(), 1);
}

TEST_F(HostHealthTest, OneThatPassesAndFailsAgainWaitsLonger) {
  Connect("a", 1);
  const std::string job = ExcludeHost();
  AnswerCheck("a", "");
  Advance(config.backoff_cap);
  FailRank(job);
  ASSERT_TRUE(Worker("a").has_exclusion());
  EXPECT_EQ(UntilNextCheck("a"), absl::Minutes(1));
  AnswerCheck("a", "");
  Advance(config.backoff_cap);
  FailRank(job);
  EXPECT_EQ(UntilNextCheck("a"), absl::Minutes(2));
}

TEST_F(HostHealthTest, AnAnswerAboutAnEarlierExclusionDoesNotCount) {
  Connect("a", 1);
  ExcludeHost();
  v1::HealthReport report;
  *report.mutable_exclusion_time() = ToProto(now - absl::Seconds(1));
  Do(HealthReported{"workers/a", report});
  EXPECT_TRUE(Worker("a").has_exclusion());
}

TEST_F(HostHealthTest, FailuresAtOnceAreOne) {
  Connect("a", 4);
  std::vector<std::string> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(Submit(1));
  for (const std::string& job : jobs) FailRank(job);
  EXPECT_EQ(WorkerRecord("a").failures_size(), 1);
  EXPECT_FALSE(Worker("a").has_exclusion());
}

TEST_F(HostHealthTest, OldFailuresDoNotCount) {
  Connect("a", 1);
  v1::JobSpec spec = Spec(1);
  spec.mutable_restart()->set_max_failures(100);
  const std::string job = Do(JobSubmitted{.spec = std::move(spec)}).job;
  for (int i = 0; i < 6; ++i) {
    Advance(absl::Minutes(31));
    FailRank(job);
  }
  EXPECT_FALSE(Worker("a").has_exclusion());
}

TEST_F(HostHealthTest, SomebodyMayTakeItBackWithoutACheck) {
  Connect("a", 1);
  const std::string job = ExcludeHost();
  Advance(config.backoff_cap);
  Do(WorkerResumed{"workers/a"});
  EXPECT_FALSE(Worker("a").has_exclusion());
  EXPECT_EQ(Record(job).ranks_size(), 1);
}

TEST_F(HostHealthTest, NoneWithoutTheSetting) {
  Connect("a", 1);
  config.exclude_after = 0;
  const std::string job = Submit(1);
  for (int i = 0; i < 4; ++i) {
    FailRank(job);
    Advance(absl::Seconds(20));
  }
  EXPECT_EQ(WorkerRecord("a").failures_size(), 4);
  EXPECT_FALSE(Worker("a").has_exclusion());
}

// Of a store that a coordinator starts from.
TEST_F(HostHealthTest, AnExclusionIsStored) {
  Connect("a", 1);
  config.exclude_after = 1;
  const std::string job = Submit(1);
  v1::RankReport report = Report(job, 0, v1::RANK_STATE_FAILED);
  report.set_failure_class(v1::FAILURE_CLASS_HOST);
  const Outcome excluded = Do(RankReported{"workers/a", report});
  EXPECT_TRUE(excluded.durable_workers.contains("workers/a"));
  v1::HealthReport passed;
  *passed.mutable_exclusion_time() = Worker("a").exclusion().time();
  EXPECT_TRUE(Do(HealthReported{"workers/a", passed}).durable_workers.contains("workers/a"));
}

}  // namespace
}  // namespace milepost::coordinator
