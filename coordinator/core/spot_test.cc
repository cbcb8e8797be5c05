// Hosts that say that they are about to be taken away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto_time.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class SpotTest : public ::testing::Test, public FakeCluster {
 protected:
  void TearDown() override { EXPECT_EQ(violation, ""); }

  v1::SpotNotice Notice(absl::Duration left) const {
    v1::SpotNotice notice;
    notice.set_reason("SIGUSR2");
    *notice.mutable_deadline() = ToProto(now + left);
    *notice.mutable_time() = ToProto(now);
    return notice;
  }
};

TEST_F(SpotTest, JobsLeaveAtTheDeadlineAndTheEventSaysWhy) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  Do(SpotNoticed{"workers/a", Notice(absl::Seconds(2))});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINING);
  EXPECT_EQ(Worker("a").drain().reason(), "its host goes away: SIGUSR2");
  EXPECT_TRUE(Worker("a").drain().spot());
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  Connect("b", 1);
  Do(WorkerHeartbeat{"workers/a"});
  Advance(absl::Seconds(2));
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_WORKER_LEAVING);
  EXPECT_THAT(Job(job).reason_detail(), HasSubstr("its host goes away: SIGUSR2"));
  const v1::Job described = DescribeInFull(state, Record(job));
  EXPECT_THAT(described.events(described.events_size() - 1).detail(), HasSubstr("SIGUSR2"));
  Send(Report(job, 0, v1::RANK_STATE_STOPPED));
  EXPECT_EQ(Job(job).placements(0).worker(), "workers/b");
  EXPECT_EQ(Job(job).failures(), 0);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINED);
}

TEST_F(SpotTest, WhoWaitsForAHostThatGoesAwayIsNotToldToTakeItBack) {
  Connect("a", 1);
  Do(SpotNoticed{"workers/a", Notice(absl::Seconds(2))});
  const std::string detail = Job(Submit(1)).reason_detail();
  EXPECT_THAT(detail, HasSubstr("workers/a with 1 such slot is drained since 1970-01-01 00:16:40 "
                                "UTC: its host goes away: SIGUSR2"));
  EXPECT_EQ(detail.find("resume"), std::string::npos) << detail;
  EXPECT_EQ(detail.find("take one back"), std::string::npos) << detail;
}

TEST_F(SpotTest, AnotherHelloSaysItAgainAndANewStartEndsIt) {
  Connect("a", 1);
  v1::Hello hello = MakeHello("a", 1, 1);
  *hello.mutable_spot_notice() = Notice(absl::ZeroDuration());
  Do(WorkerHello{hello});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINED);
  const v1::Drain first = Worker("a").drain();
  now += absl::Seconds(1);
  Do(WorkerHello{hello});
  EXPECT_EQ(Worker("a").drain().SerializeAsString(), first.SerializeAsString());
  Connect("a", 1, /*incarnation=*/2);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_READY);
  EXPECT_FALSE(Worker("a").has_drain());
  // What the new process notices is new, whatever the old one has noticed.
  hello.set_incarnation(2);
  Do(WorkerHello{hello});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINED);
}

TEST_F(SpotTest, AFalseAlarmThatWasAnsweredIsNotHeededAgain) {
  Connect("a", 1);
  const std::string job = Submit(1);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::Hello hello = MakeHello("a", 1, 1);
  *hello.mutable_spot_notice() = Notice(absl::Minutes(1));
  *hello.add_ranks() = Report(job, 0, v1::RANK_STATE_RUNNING);
  Do(SpotNoticed{"workers/a", hello.spot_notice()});
  Do(WorkerResumed{"workers/a"});
  now += absl::Seconds(1);
  Do(WorkerHello{hello});  // the stream was lost,
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_READY);
  Do(CoordinatorRestarted{});  // or the coordinator
  Do(WorkerHello{hello});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  // A later notice is one that nobody has answered.
  *hello.mutable_spot_notice() = Notice(absl::ZeroDuration());
  Do(WorkerHello{hello});
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINING);
  EXPECT_EQ(Job(job).reason(), v1::JOB_REASON_WORKER_LEAVING);
}

TEST_F(SpotTest, ALaterNoticeMayBringTheDeadlineForward) {
  Connect("a", 1);
  const absl::Time first = now;
  Do(SpotNoticed{"workers/a", Notice(absl::Hours(1))});
  now += absl::Seconds(1);
  Do(SpotNoticed{"workers/a", Notice(absl::Seconds(30))});
  EXPECT_EQ(FromProto(Worker("a").drain().deadline()), now + absl::Seconds(30));
  EXPECT_EQ(FromProto(Worker("a").drain().request_time()), first);
  EXPECT_TRUE(Worker("a").drain().spot());
  now += absl::Seconds(1);
  Do(SpotNoticed{"workers/a", Notice(absl::Hours(1))});
  EXPECT_EQ(FromProto(Worker("a").drain().deadline()), now + absl::Seconds(29));
}

TEST_F(SpotTest, ADrainThatSomebodyAskedForStays) {
  Connect("a", 1);
  Do(WorkerDrained{"workers/a", "new disk", now + absl::Hours(1)});
  Do(SpotNoticed{"workers/a", Notice(absl::Seconds(30))});
  Do(SpotNoticed{"workers/a", Notice(absl::Seconds(30))});
  EXPECT_EQ(Worker("a").drain().reason(), "new disk; its host goes away: SIGUSR2");
  EXPECT_EQ(FromProto(Worker("a").drain().deadline()), now + absl::Seconds(30));
  EXPECT_FALSE(Worker("a").drain().spot());
  Connect("a", 1, /*incarnation=*/2);
  EXPECT_EQ(Worker("a").state(), v1::WORKER_STATE_DRAINED);
}

TEST_F(SpotTest, ADeadlineIsNoMoreThanADayAhead) {
  Connect("a", 1);
  Do(SpotNoticed{"workers/a", Notice(absl::Hours(1000))});
  EXPECT_EQ(FromProto(Worker("a").drain().deadline()), now + absl::Hours(24));
  Do(SpotNoticed{"workers/unknown", Notice(absl::ZeroDuration())});
}

}  // namespace
}  // namespace milepost::coordinator
