#include "coordinator/security/token_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error_details.h"
#include "common/pki/secret.h"
#include "common/proto_time.h"
#include "coordinator/security/principal.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

class TokenTableTest : public ::testing::Test {
 protected:
  absl::Status Put(const v1::TokenRecord& record, bool) {
    if (!disk_.ok()) return disk_;
    stored_[record.token().name()] = record;
    ++writes_;
    return absl::OkStatus();
  }
  // As a restarted coordinator has it.
  std::unique_ptr<TokenTable> Table() {
    std::vector<v1::TokenRecord> records;
    for (const auto& [name, record] : stored_) records.push_back(record);
    return std::make_unique<TokenTable>(
        records, [this](const auto& record, bool sync) { return Put(record, sync); },
        [this](const std::string& name) {
          if (disk_.ok()) stored_.erase(name);
          return disk_;
        },
        limits_);
  }
  absl::StatusOr<v1::Token> Make(TokenTable* table, const std::string& project, absl::Time now,
                                 absl::Time expire = absl::InfiniteFuture()) {
    v1::CreateTokenRequest request = Request(project, v1::ROLE_VIEWER);
    if (expire < absl::InfiniteFuture()) *request.mutable_expire_time() = ToProto(expire);
    auto made = table->Create(request, LocalPrincipal(), now);
    if (!made.ok()) return made.status();
    return made->token();
  }
  static v1::CreateTokenRequest Request(const std::string& project, v1::Role role) {
    v1::CreateTokenRequest request;
    request.set_user("alice");
    v1::Grant* grant = request.add_grants();
    grant->set_project(project);
    grant->set_role(role);
    return request;
  }
  static v1::Principal Holder(const std::string& project, v1::Role role) {
    v1::Principal principal;
    principal.set_name("tokens/holder");
    *principal.add_grants() = Request(project, role).grants(0);
    return principal;
  }

  absl::Status disk_;
  TokenLimits limits_;
  std::map<std::string, v1::TokenRecord> stored_;
  int writes_ = 0;
};

TEST_F(TokenTableTest, ATokenIsItsHolderUntilItExpires) {
  auto table = Table();
  v1::CreateTokenRequest request = Request("p", v1::ROLE_VIEWER);
  *request.mutable_expire_time() = ToProto(kNow + absl::Hours(1));
  const auto made = table->Create(request, LocalPrincipal(), kNow);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(TokenIdOf(made->secret()), made->token().name().substr(7));
  for (auto* each : {&table}) {
    const auto principal = (*each)->Authenticate(made->secret(), kNow + absl::Minutes(59));
    ASSERT_TRUE(principal.ok()) << principal.status();
    EXPECT_EQ(principal->user(), "alice");
    EXPECT_TRUE(HasRole(*principal, "p", v1::ROLE_VIEWER));
    EXPECT_FALSE(HasRole(*principal, "q", v1::ROLE_VIEWER));
    EXPECT_FALSE(HasRole(*principal, "p", v1::ROLE_SUBMITTER));
  }
  const auto late = Table()->Authenticate(made->secret(), kNow + absl::Hours(1));
  EXPECT_TRUE(absl::IsUnauthenticated(late.status()));
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("expired"));
  EXPECT_FALSE(table->CheckHolds(made->token().name(), kNow + absl::Hours(1)).ok());
}

TEST_F(TokenTableTest, NoUsersNameLooksLikeAnothers) {
  auto table = Table();
  v1::CreateTokenRequest request = Request("p", v1::ROLE_VIEWER);
  for (const char* name : {"a b", "caf\xc3\xa9",
                           "\xe2\x80\xae"
                           "admin",
                           "a\nb", ""}) {
    request.set_user(name);
    EXPECT_TRUE(absl::IsInvalidArgument(table->Create(request, LocalPrincipal(), kNow).status()))
        << name;
  }
  request.set_user("team/alice.b-c_d+e@example.org:1");
  EXPECT_TRUE(table->Create(request, LocalPrincipal(), kNow).ok());
}

TEST_F(TokenTableTest, TheStoreHasTheDigestAlone) {
  auto table = Table();
  const auto made = table->Create(Request("p", v1::ROLE_VIEWER), LocalPrincipal(), kNow);
  ASSERT_TRUE(made.ok());
  const v1::TokenRecord& record = stored_.begin()->second;
  EXPECT_EQ(record.sha256(), Sha256(made->secret()));
  EXPECT_EQ(record.SerializeAsString().find(made->secret().substr(20)), std::string::npos);
}

TEST_F(TokenTableTest, WhatIsNotGenuineLearnsNothing) {
  auto table = Table();
  const auto made = table->Create(Request("p", v1::ROLE_VIEWER), LocalPrincipal(), kNow);
  ASSERT_TRUE(table->Revoke(made->token().name(), LocalPrincipal(), kNow).ok());
  // The right id with another secret: not even that it was revoked.
  std::string forged = made->secret();
  forged.back() = forged.back() == 'a' ? 'b' : 'a';
  const absl::Status unknown = table->Authenticate("mpt_nonsense", kNow).status();
  EXPECT_EQ(table->Authenticate(forged, kNow).status(), unknown);
  EXPECT_THAT(std::string(table->Authenticate(made->secret(), kNow).status().message()),
              HasSubstr("revoked"));
}

TEST_F(TokenTableTest, RevocationIsDurableOrDidNotHappen) {
  auto table = Table();
  const auto made = table->Create(Request("p", v1::ROLE_VIEWER), LocalPrincipal(), kNow);
  disk_ = absl::ResourceExhaustedError("full");
  EXPECT_FALSE(table->Revoke(made->token().name(), LocalPrincipal(), kNow).ok());
  EXPECT_TRUE(table->Authenticate(made->secret(), kNow).ok());
  EXPECT_FALSE(table->Create(Request("p", v1::ROLE_VIEWER), LocalPrincipal(), kNow).ok());
  disk_ = absl::OkStatus();
  ASSERT_TRUE(table->Revoke(made->token().name(), LocalPrincipal(), kNow).ok());
  EXPECT_FALSE(Table()->Authenticate(made->secret(), kNow).ok());
}

TEST_F(TokenTableTest, NobodyGivesMoreThanItHas) {
  auto table = Table();
  const v1::Principal admin = Holder("p", v1::ROLE_ADMIN);
  EXPECT_TRUE(table->Create(Request("p", v1::ROLE_ADMIN), admin, kNow).ok());
  for (const char* project : {"q", "*"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(
        table->Create(Request(project, v1::ROLE_VIEWER), admin, kNow).status()));
  }
  EXPECT_TRUE(absl::IsPermissionDenied(
      table->Create(Request("p", v1::ROLE_VIEWER), Holder("p", v1::ROLE_SUBMITTER), kNow)
          .status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      table->Create(Request("p", v1::ROLE_WORKER), LocalPrincipal(), kNow).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      table->Create(Request("p/q", v1::ROLE_VIEWER), LocalPrincipal(), kNow).status()));
}

TEST_F(TokenTableTest, OnlyAdminsOfAllThatItGrantsAndItsHolderRevoke) {
  auto table = Table();
  v1::CreateTokenRequest request = Request("p", v1::ROLE_VIEWER);
  *request.add_grants() = Request("q", v1::ROLE_VIEWER).grants(0);
  const auto made = table->Create(request, LocalPrincipal(), kNow);
  const std::string& name = made->token().name();
  EXPECT_TRUE(absl::IsNotFound(table->Revoke(name, Holder("p", v1::ROLE_ADMIN), kNow).status()));
  EXPECT_TRUE(table->List(Holder("p", v1::ROLE_ADMIN), "", 10).empty());
  const auto holder = table->Authenticate(made->secret(), kNow);
  EXPECT_EQ(table->List(*holder, "", 10).size(), 1u);
  EXPECT_TRUE(table->Revoke(name, *holder, kNow).ok());
}

TEST_F(TokenTableTest, WhatHasEndedMakesRoomTheLongestEndedFirst) {
  limits_ = {.of_all = 3, .of_project = 3};
  auto table = Table();
  const auto revoked = Make(table.get(), "p", kNow);
  const auto expired = Make(table.get(), "p", kNow, kNow + absl::Hours(1));
  const auto kept = Make(table.get(), "q", kNow, kNow + absl::Hours(9));
  ASSERT_TRUE(revoked.ok() && expired.ok() && kept.ok());
  const absl::Status full = Make(table.get(), "p", kNow).status();
  EXPECT_EQ(ReasonOf(full), v1::ERROR_REASON_TOO_MANY_TOKENS);
  EXPECT_THAT(std::string(full.message()), HasSubstr("there are 3 tokens that have not ended"));
  ASSERT_TRUE(table->Revoke(revoked->name(), LocalPrincipal(), kNow + absl::Hours(2)).ok());
  table = Table();
  const absl::Time later = kNow + absl::Hours(3);
  EXPECT_TRUE(Make(table.get(), "p", later).ok());
  EXPECT_EQ(stored_.count(expired->name()), 0u);
  EXPECT_EQ(stored_.count(revoked->name()), 1u);
  EXPECT_TRUE(Make(table.get(), "p", later).ok());
  EXPECT_EQ(stored_.count(revoked->name()), 0u);
  EXPECT_FALSE(Make(table.get(), "p", later).ok());
  EXPECT_EQ(stored_.size(), 3u);
  EXPECT_TRUE(table->CheckHolds(kept->name(), later).ok());
  EXPECT_EQ(ReasonOf(table->CheckHolds(expired->name(), later)), v1::ERROR_REASON_TOKEN_UNKNOWN);
}

TEST_F(TokenTableTest, NothingIsRemovedThatTheDiskKeeps) {
  limits_ = {.of_all = 1, .of_project = 1};
  auto table = Table();
  const auto expired = Make(table.get(), "p", kNow, kNow + absl::Hours(1));
  ASSERT_TRUE(expired.ok());
  disk_ = absl::ResourceExhaustedError("full");
  EXPECT_EQ(Make(table.get(), "p", kNow + absl::Hours(1)).status(), disk_);
  EXPECT_EQ(ReasonOf(table->CheckHolds(expired->name(), kNow + absl::Hours(1))),
            v1::ERROR_REASON_TOKEN_EXPIRED);
}

TEST_F(TokenTableTest, AProjectHasItsOwnPlacesAlone) {
  limits_ = {.of_all = 100, .of_project = 2};
  auto table = Table();
  const auto of_q = Make(table.get(), "q", kNow, kNow + absl::Seconds(1));
  const auto of_p = Make(table.get(), "p", kNow);
  ASSERT_TRUE(of_q.ok() && of_p.ok() && Make(table.get(), "p", kNow).ok());
  const absl::Time later = kNow + absl::Hours(1);
  const absl::Status full = Make(table.get(), "p", later).status();
  EXPECT_EQ(ReasonOf(full), v1::ERROR_REASON_TOO_MANY_TOKENS);
  EXPECT_THAT(std::string(full.message()), HasSubstr("project p has 2 tokens"));
  // Also with others, and with two roles there.
  v1::CreateTokenRequest both = Request("q", v1::ROLE_VIEWER);
  *both.add_grants() = Request("p", v1::ROLE_VIEWER).grants(0);
  EXPECT_FALSE(table->Create(both, LocalPrincipal(), later).ok());
  EXPECT_TRUE(Make(table.get(), "q", later).ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Make(table.get(), "*", later).ok());
  ASSERT_TRUE(table->Revoke(of_p->name(), LocalPrincipal(), later).ok());
  EXPECT_TRUE(Make(table.get(), "p", later).ok());
  EXPECT_EQ(stored_.count(of_p->name()), 0u);
  EXPECT_EQ(stored_.count(of_q->name()), 1u);  // nobody needed its place
}

// Else the next start would import it again, as one that holds.
TEST_F(TokenTableTest, ARevokedAdminTokenOfInitPkiIsNotRemoved) {
  limits_ = {.of_all = 2, .of_project = 2};
  auto table = Table();
  const NewToken admin = MakeToken();
  ASSERT_TRUE(table->ImportAdmin(admin, kNow).ok());
  ASSERT_TRUE(table->Revoke("tokens/" + admin.id, LocalPrincipal(), kNow).ok());
  ASSERT_TRUE(Make(table.get(), "p", kNow).ok());
  EXPECT_EQ(ReasonOf(Make(table.get(), "p", kNow).status()), v1::ERROR_REASON_TOO_MANY_TOKENS);
  table = Table();
  ASSERT_TRUE(table->ImportAdmin(admin, kNow).ok());
  EXPECT_EQ(ReasonOf(table->Authenticate(admin.text, kNow).status()),
            v1::ERROR_REASON_TOKEN_REVOKED);
}

TEST_F(TokenTableTest, UseIsNotedNowAndThen) {
  auto table = Table();
  const auto made = table->Create(Request("p", v1::ROLE_VIEWER), LocalPrincipal(), kNow);
  const int before = writes_;
  for (int second = 0; second < 600; ++second) {
    ASSERT_TRUE(table->Authenticate(made->secret(), kNow + absl::Seconds(second)).ok());
  }
  EXPECT_EQ(writes_, before + 1);
  ASSERT_TRUE(table->Authenticate(made->secret(), kNow + absl::Minutes(11)).ok());
  EXPECT_EQ(writes_, before + 2);
}

TEST(TokenTextTest, DigestLinesComeBack) {
  const NewToken token = MakeToken();
  EXPECT_EQ(token.text.size(), 4u + 12 + 1 + 64);
  const auto read = ParseTokenDigestLine(TokenDigestLine(token));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->id, token.id);
  EXPECT_EQ(read->sha256, token.sha256);
  EXPECT_FALSE(ParseTokenDigestLine("nonsense").ok());
  EXPECT_FALSE(ParseTokenDigestLine("").ok());
}

}  // namespace
}  // namespace milepost::coordinator
