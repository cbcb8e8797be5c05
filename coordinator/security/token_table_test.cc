#include "coordinator/security/token_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
        records, [this](const auto& record, bool sync) { return Put(record, sync); });
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
