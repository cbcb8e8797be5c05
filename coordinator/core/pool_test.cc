// Pools of workers: their label `pool`, and jobs that ask for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PoolTest : public ::testing::Test, public FakeCluster {
 protected:
  void TearDown() override { EXPECT_EQ(violation, ""); }

  // A worker of the pool.
  void Join(const std::string& pool, const std::string& id, int slots, int64_t incarnation = 1) {
    v1::Hello hello = MakeHello(id, slots, incarnation);
    (*hello.mutable_labels())["pool"] = pool;
    Do(WorkerHello{hello});
  }
  std::string SubmitTo(const std::string& pool, int ranks) {
    JobSubmitted event{.spec = Spec(ranks)};
    event.spec.mutable_resources()->set_pool(pool);
    return Do(event).job;
  }
  std::string Reason(const std::string& job) const { return Job(job).reason_detail(); }
  bool Starts(const std::string& job) const { return Job(job).state() == v1::JOB_STATE_STARTING; }
};

TEST_F(PoolTest, AGangIsInOnePool) {
  Join("left", "a", 4);
  Join("right", "b", 4);
  Connect("c", 2);
  const std::string job = Submit(6);
  EXPECT_THAT(Reason(job), AllOf(HasSubstr("6 cpu slots of one pool"), HasSubstr("largest has 4"),
                                 HasSubstr("4 in pool left, 4 in pool right, 2 in no pool")));
  Join("right", "d", 2);
  ASSERT_TRUE(Starts(job));
  for (const v1::RankRecord& rank : Record(job).ranks()) {
    EXPECT_EQ(PoolOf(state.FindWorker(rank.worker())->worker()), "right");
  }
}

// Two islands of four ranks, in racks with three hosts of two slots each: each island in one rack,
// and its tensor ranks on one host.
TEST_F(PoolTest, AnIslandIsInOneRack) {
  for (int host = 0; host < 6; ++host) {
    v1::Hello hello = MakeHello(absl::StrCat("h", host), 2, /*incarnation=*/1);
    (*hello.mutable_labels())["rack"] = host < 3 ? "east" : "west";
    Do(WorkerHello{hello});
  }
  JobSubmitted event{.spec = Spec(8)};
  event.spec.mutable_resources()->mutable_mesh()->set_tensor(2);
  event.spec.mutable_train()->mutable_sync()->set_islands(2);
  const std::string job = Do(event).job;
  ASSERT_TRUE(Starts(job));
  const auto worker_of = [&](int rank) { return Record(job).ranks(rank).worker(); };
  const auto rack_of = [&](int rank) {
    return state.FindWorker(worker_of(rank))->worker().labels().at("rack");
  };
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(rack_of(rank), rack_of(rank / 4 * 4)) << rank;
    EXPECT_EQ(worker_of(rank), worker_of(rank / 2 * 2)) << rank;
  }
  EXPECT_NE(rack_of(0), rack_of(4));
}

TEST_F(PoolTest, AJobGetsSlotsOfItsPoolAlone) {
  Connect("none", 4);
  Join("a100", "a", 2);
  const std::string job = SubmitTo("a100", 2);
  ASSERT_TRUE(Starts(job));
  EXPECT_EQ(Record(job).ranks(1).worker(), "workers/a");
  EXPECT_THAT(Reason(SubmitTo("a100", 1)),
              HasSubstr("needs 1 cpu slot in pool a100; 0 of 2 on 2 ready workers are free; 4 in "
                        "other pools than a100; 2 held by jobs/1"));
  EXPECT_THAT(Reason(SubmitTo("a", 1)), HasSubstr("the workers have 0 of these"));
  EXPECT_TRUE(Starts(Submit(4))) << "in no pool";
}

TEST_F(PoolTest, OnlyDrainedWorkersOfThePoolAreNamed) {
  Join("left", "a", 2);
  Join("right", "b", 2);
  Connect("c", 1);
  Do(WorkerDrained{"workers/a", "new disk", now});
  Do(WorkerDrained{"workers/b", "new disk", now});
  EXPECT_THAT(Reason(SubmitTo("left", 1)),
              AllOf(HasSubstr("workers/a with 2 such slots"), Not(HasSubstr("workers/b"))));
  EXPECT_THAT(Reason(Submit(2)), AllOf(HasSubstr("workers/a with 2 such slots"),
                                       HasSubstr("workers/b with 2 such slots")));
}

// Its slots come back to the pool that it has now.
TEST_F(PoolTest, AWorkerMayComeBackWithAnotherPool) {
  Join("left", "a", 2);
  Join("right", "b", 2);
  const std::string job = Submit(2);
  ASSERT_TRUE(Starts(job));
  ASSERT_EQ(Record(job).ranks(0).worker(), "workers/a");
  ReportAll(job, v1::RANK_STATE_RUNNING);
  ReportAll(job, v1::RANK_STATE_SUCCEEDED);
  Join("right", "a", 2, 2);
  const std::string larger = Submit(4);
  EXPECT_TRUE(Starts(larger));
  EXPECT_THAT(Reason(SubmitTo("left", 1)), HasSubstr("the workers have 0 of these"));
}

TEST_F(PoolTest, OfAGangWhoseWorkerChangedPoolOnePoolsSlotsAreAwaited) {
  Join("left", "a", 1);
  Join("left", "b", 1);
  const std::string job = Submit(2);
  ReportAll(job, v1::RANK_STATE_RUNNING);
  v1::Hello hello = MakeHello("a", 1, 1);
  (*hello.mutable_labels())["pool"] = "right";
  *hello.add_ranks() = Report(job, 0, v1::RANK_STATE_RUNNING);
  Do(WorkerHello{hello});
  ASSERT_EQ(Job(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(Reason(SubmitTo("right", 1)), HasSubstr("1 held by jobs/1 until it ends"));
}

}  // namespace
}  // namespace milepost::coordinator
