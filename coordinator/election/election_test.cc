#include "coordinator/election/election.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "absl/synchronization/notification.h"
#include "coordinator/election/fake_etcd.h"

namespace milepost::coordinator {
namespace {

using Fault = FakeEtcd::Fault;

constexpr char kKey[] = "/milepost/coordinator";

class ElectionTest : public ::testing::Test {
 protected:
  std::unique_ptr<Election> Candidate(const std::string& name) {
    return std::make_unique<Election>(
        &client_, ElectionOptions{.value = name, .uptime = [this] { return etcd_.now(); }});
  }
  static Standing Tried(Election* election) {
    const auto standing = election->Try();
    EXPECT_TRUE(standing.ok()) << standing.status();
    return standing.value_or(Standing{-1, ""});
  }

  FakeEtcd etcd_;
  EtcdClient client_{{Endpoint(etcd_.address())}};
};

TEST_F(ElectionTest, OneIsElectedAndTheOthersLearnWhere) {
  auto a = Candidate("a"), b = Candidate("b");
  EXPECT_FALSE(a->MayAct().ok());
  EXPECT_GT(Tried(a.get()).revision, 0);
  EXPECT_TRUE(a->MayAct().ok());
  const Standing standby = Tried(b.get());
  EXPECT_EQ(standby.revision, 0);
  EXPECT_EQ(standby.active, "a");
  EXPECT_FALSE(b->MayAct().ok());
  EXPECT_EQ(etcd_.leases(), 1);  // a standby holds none
}

TEST_F(ElectionTest, TheNextElectionHasAHigherNumber) {
  auto a = Candidate("a"), b = Candidate("b");
  const int64_t first = Tried(a.get()).revision;
  a->Resign();
  EXPECT_FALSE(a->MayAct().ok());
  EXPECT_GT(Tried(b.get()).revision, first);
}

TEST_F(ElectionTest, StopsBeforeEtcdGivesTheLeaseToAnother) {
  auto a = Candidate("a"), b = Candidate("b");
  Tried(a.get());
  etcd_.Advance(absl::Milliseconds(3100));
  EXPECT_TRUE(a->MayAct().ok());
  etcd_.Advance(absl::Milliseconds(200));
  EXPECT_FALSE(a->MayAct().ok());
  EXPECT_EQ(Tried(b.get()).revision, 0) << "etcd's lease has not run out";
  etcd_.Advance(absl::Milliseconds(800));
  EXPECT_GT(Tried(b.get()).revision, 0);
  EXPECT_FALSE(a->MayAct().ok());
}

TEST_F(ElectionTest, ARenewalHoldsFromWhenItWasAskedFor) {
  auto a = Candidate("a");
  Tried(a.get());
  etcd_.Advance(absl::Seconds(3));
  EXPECT_TRUE(a->Renew().ok());
  etcd_.Advance(absl::Seconds(3));
  EXPECT_TRUE(a->MayAct().ok());
  etcd_.Advance(absl::Seconds(1));
  EXPECT_FALSE(a->MayAct().ok());
  // etcd would still renew it: what was given up stays so.
  EXPECT_FALSE(a->Renew().ok());
  EXPECT_FALSE(a->MayAct().ok());
}

// etcd has it renewed, the coordinator does not know: it stops first.
TEST_F(ElectionTest, LostAnswersOfRenewalsDoNotCount) {
  auto a = Candidate("a");
  Tried(a.get());
  etcd_.Break(Fault::kDoesItAndFails);
  etcd_.Advance(absl::Seconds(3));
  EXPECT_FALSE(a->Renew().ok());
  EXPECT_TRUE(a->MayAct().ok());
  etcd_.Advance(absl::Milliseconds(300));
  EXPECT_FALSE(a->MayAct().ok());
  EXPECT_GT(etcd_.renewals(), 0);
}

TEST_F(ElectionTest, ALeaseThatEtcdHasEndedIsOverAtOnce) {
  auto a = Candidate("a");
  Tried(a.get());
  etcd_.EndLease(etcd_.LeaseOf(kKey));
  EXPECT_TRUE(absl::IsNotFound(a->Renew()));
  EXPECT_FALSE(a->MayAct().ok());
}

// The answer of the election is lost: the next try finds the own key.
TEST_F(ElectionTest, AnElectionWhoseAnswerWasLostIsFoundOut) {
  auto a = Candidate("a");
  ASSERT_TRUE(client_.Get(kKey, absl::Seconds(1)).ok());
  const auto lease = client_.Grant(absl::Seconds(4), absl::Seconds(1));
  ASSERT_TRUE(lease.ok());
  const auto first = client_.Create(kKey, "a", lease->id, absl::Seconds(1));
  const auto again = client_.Create(kKey, "a", lease->id, absl::Seconds(1));
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(again->create_revision, first->create_revision);
  EXPECT_EQ(again->lease, lease->id);
}

TEST_F(ElectionTest, ACandidateOutOfReachIsNotElected) {
  auto a = Candidate("a");
  etcd_.Break(Fault::kRefuses);
  EXPECT_FALSE(a->Try().ok());
  EXPECT_FALSE(a->MayAct().ok());
  etcd_.Break(Fault::kNone);
  EXPECT_GT(Tried(a.get()).revision, 0);
}

TEST_F(ElectionTest, GoesOnToTheNextEndpoint) {
  EtcdClient client({Endpoint("127.0.0.1:1"), Endpoint(etcd_.address())});
  Election election(&client, {.value = "a", .uptime = [this] { return etcd_.now(); }});
  EXPECT_GT(Tried(&election).revision, 0);
}

TEST_F(ElectionTest, RenewsByItselfAndTellsOfTheLoss) {
  auto a = Candidate("a");
  Tried(a.get());
  absl::Notification lost;
  absl::Status why;
  a->KeepRenewing([&](const absl::Status& status) {
    why = status;
    lost.Notify();
  });
  while (etcd_.renewals() < 2) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(lost.HasBeenNotified());
  etcd_.Break(Fault::kRefuses);
  etcd_.Advance(absl::Seconds(4));
  lost.WaitForNotification();
  EXPECT_FALSE(a->MayAct().ok());
  EXPECT_FALSE(why.ok());
}

// Candidates try, renew, pause, wake up and are killed in any order, while time goes on: never may
// two act at one moment, and every election has a higher number than all before it.
TEST_F(ElectionTest, NeverMayTwoActAtOnce) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<Election>> all;
    for (int i = 0; i < 3; ++i) all.push_back(Candidate(std::to_string(i)));
    int64_t highest = 0;
    int elections = 0;
    for (int i = 0; i < 250; ++i) {
      const uint32_t who = random() % all.size();
      const bool acts = all[who]->MayAct().ok();
      if (acts) {
        if (random() % 2 == 0) {
          all[who]->Renew().IgnoreError();
        } else if (random() % 8 == 0) {
          all[who] = Candidate(std::to_string(who));  // killed and started again
        }
      } else if (etcd_.LeaseOf(kKey) == 0 || random() % 4 == 0) {
        const auto standing = all[who]->Try();
        if (standing.ok() && standing->revision > 0) {
          EXPECT_GT(standing->revision, highest);
          highest = standing->revision;
          ++elections;
        }
      }
      etcd_.Advance(absl::Milliseconds(random() % 1500));
      int acting = 0;
      for (const auto& one : all) acting += one->MayAct().ok() ? 1 : 0;
      ASSERT_LE(acting, 1) << "seed " << seed << ", turn " << i;
    }
    EXPECT_GT(elections, 5);
    for (const auto& one : all) one->Resign();
  }
}

}  // namespace
}  // namespace milepost::coordinator
