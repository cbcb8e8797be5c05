#include "coordinator/security/join_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "common/error_details.h"
#include "common/proto_time.h"
#include "coordinator/security/principal.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

const absl::Time kJoinNow = absl::FromUnixSeconds(1'000'000);

class JoinTableTest : public ::testing::Test, public JoinRecords {
 public:
  absl::Status Put(const v1::JoinTokenRecord& token) override {
    if (disk_.ok()) tokens_[token.token().name()] = token;
    return disk_;
  }
  absl::Status RemoveToken(const std::string& name) override {
    if (disk_.ok()) tokens_.erase(name);
    return disk_;
  }
  absl::Status Put(const v1::JoinedWorkerRecord& worker, const v1::JoinTokenRecord* used) override {
    if (!disk_.ok()) return disk_;
    workers_[worker.worker_id()] = worker;
    if (used != nullptr) tokens_[used->token().name()] = *used;
    return absl::OkStatus();
  }
  absl::Status RemoveWorker(const std::string& worker_id) override {
    if (disk_.ok()) workers_.erase(worker_id);
    return disk_;
  }

 protected:
  JoinTableTest() { Restart(); }
  void Restart() {
    std::vector<v1::JoinTokenRecord> tokens;
    std::vector<v1::JoinedWorkerRecord> workers;
    for (const auto& [name, record] : tokens_) tokens.push_back(record);
    for (const auto& [id, record] : workers_) workers.push_back(record);
    table_ = std::make_unique<JoinTable>(this, tokens, workers, limits_);
  }
  static v1::CreateJoinTokenRequest Request(const std::string& pool, int uses) {
    v1::CreateJoinTokenRequest request;
    request.set_pool(pool);
    request.set_uses(uses);
    *request.mutable_expire_time() = ToProto(kJoinNow + absl::Hours(1));
    return request;
  }
  // The token's name.
  std::string Make(const v1::CreateJoinTokenRequest& request) {
    const auto made = table_->Create(request, LocalPrincipal(), kJoinNow);
    EXPECT_TRUE(made.ok()) << made.status();
    secret_ = made.ok() ? made->secret() : "";
    return made.ok() ? made->token().name() : "";
  }
  absl::StatusOr<std::string> Join(const std::string& token, const JoinAsk& ask,
                                   absl::Time now = kJoinNow) {
    return table_->Join(token, ask, now + absl::Hours(24), now);
  }
  static JoinAsk Ask(const std::string& id, const std::string& key) {
    return {.worker_id = id, .key_sha256 = key, .address = "10.1.2.3"};
  }
  int Used(const std::string& token) { return tokens_[token].token().used(); }

  JoinLimits limits_;
  absl::Status disk_;
  std::map<std::string, v1::JoinTokenRecord> tokens_;
  std::map<std::string, v1::JoinedWorkerRecord> workers_;
  std::unique_ptr<JoinTable> table_;
  std::string secret_;
};

TEST_F(JoinTableTest, HostsJoinThePoolAsOftenAsTheTokenSays) {
  const std::string token = Make(Request("a100", 2));
  EXPECT_EQ(*Join(token, Ask("gpu-01", "k1")), "a100");
  EXPECT_EQ(*Join(token, Ask("gpu-02", "k2")), "a100");
  Restart();
  const auto third = Join(token, Ask("gpu-03", "k3"));
  EXPECT_EQ(ReasonOf(third.status()), v1::ERROR_REASON_JOIN_TOKEN_USED_UP) << third.status();
  EXPECT_EQ(Used(token), 2);
  EXPECT_EQ(table_->List("", 10).at(0).used(), 2);
}

TEST_F(JoinTableTest, AServiceAccountStandsForOneTokenThatHolds) {
  v1::CreateJoinTokenRequest request = Request("h100", 0);
  for (const char* bad : {"h100", "ml/", "/h100", "ml/a/b", "ML/a", "ml/a b"}) {
    request.set_service_account(bad);
    EXPECT_TRUE(
        absl::IsInvalidArgument(table_->Create(request, LocalPrincipal(), kJoinNow).status()))
        << bad;
  }
  request.set_service_account("ml/h100");
  const std::string token = Make(request);
  EXPECT_EQ(secret_, "") << "there is nothing to steal";
  v1::CreateJoinTokenRequest other_pool = request;
  other_pool.set_pool("a100");
  EXPECT_EQ(ReasonOf(table_->Create(other_pool, LocalPrincipal(), kJoinNow).status()),
            v1::ERROR_REASON_SERVICE_ACCOUNT_TAKEN);
  Restart();
  const ServiceAccount account = {.name = "ml/h100", .expire = kJoinNow + absl::Minutes(5)};
  const auto who = table_->AuthenticateAccount(account, kJoinNow);
  ASSERT_TRUE(who.ok()) << who.status();
  EXPECT_EQ(who->name(), token);
  EXPECT_EQ(FromProto(who->expire_time()), account.expire);
  EXPECT_TRUE(absl::IsUnauthenticated(
      table_->AuthenticateAccount({"ml/other", account.expire}, kJoinNow).status()));
  EXPECT_EQ(*Join(token, Ask("gpu-01", "k1")), "h100");

  // Before its year is over another takes its place.
  *request.mutable_expire_time() = ToProto(kJoinNow + absl::Hours(2));
  const std::string later = Make(request);
  EXPECT_EQ(table_->AuthenticateAccount(account, kJoinNow)->name(), later);
  ASSERT_TRUE(table_->Revoke(later, kJoinNow).ok());
  EXPECT_EQ(table_->AuthenticateAccount(account, kJoinNow)->name(), token);

  ASSERT_TRUE(table_->Revoke(token, kJoinNow).ok());
  EXPECT_EQ(ReasonOf(table_->AuthenticateAccount(account, kJoinNow).status()),
            v1::ERROR_REASON_TOKEN_REVOKED);
  const std::string next = Make(request);
  EXPECT_EQ(table_->AuthenticateAccount(account, kJoinNow)->name(), next);
}

TEST_F(JoinTableTest, AnAnswerThatWasLostCostsNoUse) {
  const std::string token = Make(Request("a100", 1));
  ASSERT_TRUE(Join(token, Ask("gpu-01", "k1")).ok());
  JoinAsk again = Ask("gpu-01", "k1");
  EXPECT_TRUE(Join(token, again).ok());
  again.known = again.alive = true;
  EXPECT_TRUE(Join(token, again).ok()) << "it is that worker";
  EXPECT_EQ(Used(token), 1);
}

TEST_F(JoinTableTest, ATokenWithoutANumberLetsAnyNumberIn) {
  const std::string token = Make(Request("a", 0));
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    EXPECT_EQ(*Join(token, Ask("gpu-" + n, "k" + n)), "a");
  }
  EXPECT_EQ(Used(token), 20);
}

TEST_F(JoinTableTest, TheTextIsTheOnlyKey) {
  const std::string token = Make(Request("a100", 1));
  EXPECT_TRUE(JoinTable::IsJoinToken(secret_));
  const auto who = table_->Authenticate(secret_, kJoinNow);
  ASSERT_TRUE(who.ok()) << who.status();
  EXPECT_EQ(who->name(), token);
  EXPECT_TRUE(HasRole(*who, "*", v1::ROLE_JOINER));
  for (const v1::Role role :
       {v1::ROLE_VIEWER, v1::ROLE_SUBMITTER, v1::ROLE_ADMIN, v1::ROLE_WORKER}) {
    EXPECT_FALSE(HasRoleSomewhere(*who, role)) << RoleName(role);
  }
  std::string other = secret_;
  other.back() = other.back() == '0' ? '1' : '0';
  EXPECT_EQ(ReasonOf(table_->Authenticate(other, kJoinNow).status()),
            v1::ERROR_REASON_TOKEN_UNKNOWN);
  EXPECT_EQ(ReasonOf(table_->Authenticate("", kJoinNow).status()), v1::ERROR_REASON_TOKEN_UNKNOWN);
  for (const auto& [name, record] : tokens_) {
    EXPECT_THAT(record.SerializeAsString(), ::testing::Not(HasSubstr(secret_)));
  }
}

TEST_F(JoinTableTest, ItEndsWithItsTimeAndWhenItIsRevoked) {
  const std::string token = Make(Request("a100", 5));
  const absl::Time later = kJoinNow + absl::Hours(1);
  EXPECT_EQ(ReasonOf(table_->Authenticate(secret_, later).status()),
            v1::ERROR_REASON_TOKEN_EXPIRED);
  EXPECT_EQ(ReasonOf(Join(token, Ask("gpu-01", "k1"), later).status()),
            v1::ERROR_REASON_TOKEN_EXPIRED);
  ASSERT_TRUE(table_->Revoke(token, kJoinNow).ok());
  ASSERT_TRUE(table_->Revoke(token, kJoinNow).ok()) << "idempotent";
  Restart();
  EXPECT_EQ(ReasonOf(table_->CheckHolds(token, kJoinNow)), v1::ERROR_REASON_TOKEN_REVOKED);
  // One that was let in just before.
  EXPECT_EQ(ReasonOf(Join(token, Ask("gpu-01", "k1")).status()), v1::ERROR_REASON_TOKEN_REVOKED);
  EXPECT_TRUE(workers_.empty());
  EXPECT_EQ(ReasonOf(table_->Revoke("joinTokens/none", kJoinNow).status()),
            v1::ERROR_REASON_JOIN_TOKEN_NOT_FOUND);
}

TEST_F(JoinTableTest, OnlyForTheNamesAndAddressesThatItIsFor) {
  v1::CreateJoinTokenRequest request = Request("a100", 0);
  request.set_worker_pattern("gpu-*");
  request.add_addresses("10.0.0.0/8");
  request.add_addresses("2001:db8::/32");
  const std::string token = Make(request);
  EXPECT_TRUE(Join(token, Ask("gpu-01", "k1")).ok());
  const auto name = Join(token, Ask("cpu-01", "k2"));
  EXPECT_TRUE(absl::IsPermissionDenied(name.status())) << name.status();
  EXPECT_THAT(name.status().message(), HasSubstr("gpu-*"));
  JoinAsk ask = Ask("gpu-02", "k2");
  for (const char* elsewhere : {"192.168.0.1", "", "2001:db9::1"}) {
    ask.address = elsewhere;
    EXPECT_TRUE(absl::IsPermissionDenied(Join(token, ask).status())) << elsewhere;
  }
  ask.address = "2001:db8::7";
  EXPECT_TRUE(Join(token, ask).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Join(token, Ask("a/../b", "k")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Join(token, Ask("", "k")).status()));
}

TEST_F(JoinTableTest, NobodyTakesAnIdThatIsNotThePools) {
  const std::string own = Make(Request("a100", 0));
  const std::string other = Make(Request("h200", 0));
  ASSERT_TRUE(Join(own, Ask("gpu-01", "k1")).ok());
  const auto stolen = Join(other, Ask("gpu-01", "k2"));
  EXPECT_TRUE(absl::IsPermissionDenied(stolen.status())) << stolen.status();
  EXPECT_TRUE(absl::IsPermissionDenied(Join(other, Ask("gpu-01", "k1")).status()))
      << "with its key neither";
  // Of a worker whose certificate an admin has made.
  JoinAsk ask = Ask("static", "k3");
  ask.known = true;
  EXPECT_TRUE(absl::IsPermissionDenied(Join(own, ask).status()));
  EXPECT_EQ(workers_.size(), 1u);
}

TEST_F(JoinTableTest, AConnectedWorkerIsNotReplacedAndOneThatHasGoneIs) {
  const std::string token = Make(Request("a100", 0));
  ASSERT_TRUE(Join(token, Ask("gpu-01", "k1")).ok());
  JoinAsk anew = Ask("gpu-01", "k2");  // the host was installed anew
  anew.known = anew.alive = true;
  EXPECT_EQ(ReasonOf(Join(token, anew).status()), v1::ERROR_REASON_WORKER_CONNECTED);
  anew.alive = false;
  EXPECT_TRUE(Join(token, anew, kJoinNow + absl::Minutes(5)).ok());
  EXPECT_EQ(Used(token), 2);
  const auto before = table_->Renew("gpu-01", "k1", kJoinNow + absl::Hours(48));
  EXPECT_TRUE(absl::IsPermissionDenied(before.status()))
      << "the key of before: " << before.status();
}

TEST_F(JoinTableTest, OfTwoHostsOfOneNameTheSecondWaits) {
  const std::string token = Make(Request("a100", 0));
  ASSERT_TRUE(Join(token, Ask("clone", "k1")).ok());
  const auto second = Join(token, Ask("clone", "k2"));  // the first is not connected yet
  EXPECT_EQ(ReasonOf(second.status()), v1::ERROR_REASON_WORKER_CONNECTED) << second.status();
  EXPECT_TRUE(Join(token, Ask("clone", "k2"), kJoinNow + absl::Minutes(3)).ok());
  // One that has been connected since, and has gone, may be replaced at once.
  ASSERT_TRUE(Join(token, Ask("pod", "k3")).ok());
  JoinAsk anew = Ask("pod", "k4");
  anew.known = true;
  anew.connected = kJoinNow + absl::Seconds(1);
  EXPECT_TRUE(Join(token, anew, kJoinNow + absl::Seconds(10)).ok());
}

TEST_F(JoinTableTest, AnotherTokenOfThePoolCountsItsOwn) {
  const std::string first = Make(Request("a100", 1));
  const std::string second = Make(Request("a100", 1));
  ASSERT_TRUE(Join(first, Ask("gpu-01", "k1")).ok());
  ASSERT_TRUE(Join(second, Ask("gpu-02", "k2")).ok());
  const auto paid = Join(second, Ask("gpu-01", "k1"));
  EXPECT_EQ(ReasonOf(paid.status()), v1::ERROR_REASON_JOIN_TOKEN_USED_UP) << paid.status();
}

TEST_F(JoinTableTest, OneTokenLeavesPlacesToOthers) {
  limits_ = {.tokens = 10, .workers = 4, .workers_of_token = 2};
  Restart();
  const std::string stolen = Make(Request("a", 0));
  const std::string other = Make(Request("b", 0));
  ASSERT_TRUE(Join(stolen, Ask("w1", "k1")).ok());
  ASSERT_TRUE(Join(stolen, Ask("w2", "k2")).ok());
  Restart();  // counted anew
  EXPECT_EQ(ReasonOf(Join(stolen, Ask("w3", "k3")).status()), v1::ERROR_REASON_TOO_MANY_JOINED);
  EXPECT_TRUE(Join(other, Ask("w4", "k4")).ok());
}

TEST_F(JoinTableTest, AShorterCertificateEndsNoLongerOne) {
  const std::string token = Make(Request("a100", 0));
  ASSERT_TRUE(Join(token, Ask("gpu-01", "k1")).ok());  // 24 hours
  ASSERT_TRUE(table_->Renew("gpu-01", "k1", kJoinNow + absl::Hours(1)).ok());
  EXPECT_EQ(FromProto(workers_["gpu-01"].expire_time()), kJoinNow + absl::Hours(24));
}

TEST_F(JoinTableTest, AnIdIsFreeWhenItsCertificateHasEndedAndNobodyKnowsIt) {
  const std::string own = Make(Request("a100", 0));
  ASSERT_TRUE(Join(own, Ask("gpu-01", "k1")).ok());
  v1::CreateJoinTokenRequest request = Request("h200", 0);
  *request.mutable_expire_time() = ToProto(kJoinNow + absl::Hours(100));
  const std::string other = Make(request);
  const absl::Time later = kJoinNow + absl::Hours(25);
  JoinAsk ask = Ask("gpu-01", "k2");
  ask.known = true;
  EXPECT_TRUE(absl::IsPermissionDenied(Join(other, ask, later).status()));
  ask.known = false;
  EXPECT_EQ(*Join(other, ask, later), "h200");
}

TEST_F(JoinTableTest, WhoHasJoinedRenews) {
  const std::string token = Make(Request("a100", 1));
  ASSERT_TRUE(Join(token, Ask("gpu-01", "k1")).ok());
  ASSERT_TRUE(table_->Revoke(token, kJoinNow).ok());
  Restart();
  EXPECT_EQ(*table_->Renew("gpu-01", "k1", kJoinNow + absl::Hours(48)), "a100");
  EXPECT_EQ(FromProto(workers_["gpu-01"].expire_time()), kJoinNow + absl::Hours(48));
  EXPECT_TRUE(absl::IsPermissionDenied(table_->Renew("static", "k", kJoinNow).status()));
}

TEST_F(JoinTableTest, WhatCannotBeStoredDidNotHappen) {
  const std::string token = Make(Request("a100", 1));
  disk_ = absl::ResourceExhaustedError("the disk is full");
  EXPECT_FALSE(Join(token, Ask("gpu-01", "k1")).ok());
  EXPECT_FALSE(table_->Revoke(token, kJoinNow).ok());
  EXPECT_FALSE(table_->Create(Request("a100", 1), LocalPrincipal(), kJoinNow).ok());
  disk_ = absl::OkStatus();
  EXPECT_EQ(table_->List("", 10).size(), 1u);
  EXPECT_TRUE(table_->CheckHolds(token, kJoinNow).ok());
  EXPECT_TRUE(Join(token, Ask("gpu-02", "k2")).ok()) << "its one use is left";
}

TEST_F(JoinTableTest, PlacesAreBoundedAndThoseThatHaveEndedMakeRoom) {
  limits_ = {.tokens = 2, .workers = 2};
  Restart();
  const std::string first = Make(Request("a", 0));
  const std::string second = Make(Request("b", 0));
  const auto third = table_->Create(Request("c", 0), LocalPrincipal(), kJoinNow);
  EXPECT_EQ(ReasonOf(third.status()), v1::ERROR_REASON_TOO_MANY_TOKENS) << third.status();
  ASSERT_TRUE(Join(first, Ask("w1", "k1")).ok());
  ASSERT_TRUE(Join(first, Ask("w2", "k2")).ok());
  EXPECT_EQ(ReasonOf(Join(first, Ask("w3", "k3")).status()), v1::ERROR_REASON_TOO_MANY_JOINED);
  ASSERT_TRUE(table_->Revoke(second, kJoinNow).ok());
  v1::CreateJoinTokenRequest longer = Request("c", 0);
  *longer.mutable_expire_time() = ToProto(kJoinNow + absl::Hours(100));
  const std::string last = Make(longer);
  EXPECT_FALSE(tokens_.contains(second));
  EXPECT_TRUE(Join(last, Ask("w3", "k3"), kJoinNow + absl::Hours(25)).ok());
  EXPECT_EQ(workers_.size(), 2u);
}

TEST_F(JoinTableTest, RequestsAreChecked) {
  const auto refusal = [&](const std::function<void(v1::CreateJoinTokenRequest*)>& change) {
    v1::CreateJoinTokenRequest request = Request("a100", 1);
    change(&request);
    const auto made = table_->Create(request, LocalPrincipal(), kJoinNow);
    EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << made.status();
    return std::string(made.status().message());
  };
  EXPECT_THAT(refusal([](auto* r) { r->set_pool("a/b"); }), HasSubstr("pool: "));
  EXPECT_THAT(refusal([](auto* r) { r->clear_pool(); }), HasSubstr("pool: "));
  EXPECT_THAT(refusal([](auto* r) { r->set_uses(-1); }), HasSubstr("uses: "));
  EXPECT_THAT(refusal([](auto* r) { r->set_uses(2'000'000); }), HasSubstr("uses: "));
  EXPECT_THAT(refusal([](auto* r) { r->set_worker_pattern("[a-z]*"); }), HasSubstr("pattern: "));
  EXPECT_THAT(refusal([](auto* r) { r->set_worker_pattern("*a*b*c*d*e"); }),
              HasSubstr("pattern: "));
  EXPECT_THAT(refusal([](auto* r) { r->add_addresses("10.0.0.0/40"); }), HasSubstr("addresses: "));
  EXPECT_THAT(refusal([](auto* r) { r->clear_expire_time(); }), HasSubstr("expire_time: "));
  EXPECT_THAT(refusal([](auto* r) { *r->mutable_expire_time() = ToProto(kJoinNow); }),
              HasSubstr("expire_time: "));
  EXPECT_THAT(refusal([](auto* r) {
                *r->mutable_expire_time() = ToProto(kJoinNow + absl::Hours(24 * 367));
              }),
              HasSubstr("expire_time: "));
}

}  // namespace
}  // namespace milepost::coordinator
