#include "coordinator/security/service_accounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/atomic_file.h"
#include "common/http/http_server.h"
#include "common/http/listen.h"
#include "common/pki/certificate.h"
#include "coordinator/security/fake_cluster_keys.h"
#include "coordinator/security/init_pki.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kAccountsPatience = absl::Seconds(30);

class ServiceAccountsTest : public ::testing::Test {
 protected:
  ServiceAccountsTest() {
    std::filesystem::create_directories(dir_);
    options_.claims.issuer = FakeClusterKeys::kIssuer;
    options_.every = absl::Hours(1);
    options_.again = absl::Milliseconds(20);
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtOnce(dir_ + "/" + name, text, kPublicMode).ok());
  }
  // The API server. Gives its keys to who shows the token.
  void StartServer() {
    ASSERT_TRUE(
        InitPki({.dir = dir_ + "/pki", .hosts = {}, .lifetime = absl::Hours(1)}, absl::Now()).ok());
    int port = 0;
    HttpOptions http{.tls_dir = dir_ + "/pki/coordinator"};
    auto sockets = ListenOn("localhost", &port);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    http.sockets = *std::move(sockets);
    http.handler = [this](const HttpRequest& request, const HttpAnswer& answer) {
      absl::MutexLock lock(&mutex_);
      ++asked_;
      if (silent_) return kept_.push_back(answer);
      if (request.authorization != "Bearer api-token") {
        return answer({.status = 401, .body = "who are you?"});
      }
      answer({.status = status_, .body = body_});
    };
    auto server = HttpServer::Start(std::move(http));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    Write("token", "api-token\n");
    options_.keys = absl::StrCat("https://localhost:", port, "/openid/v1/jwks");
    options_.authority = dir_ + "/pki/client/ca.crt";
    options_.token = dir_ + "/token";
  }
  void Serve(int status, const std::string& body) {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    body_ = body;
  }
  void AwaitAsked(int times) {
    absl::MutexLock lock(&mutex_);
    const int wanted = asked_ + times;
    const auto often = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return asked_ >= wanted; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&often), kAccountsPatience));
  }
  static absl::Status Try(ServiceAccounts* accounts, const FakeClusterKeys& keys) {
    return accounts->Identify(keys.Token("ml", "a", absl::Now()), absl::Now()).status();
  }
  static bool Await(ServiceAccounts* accounts, const FakeClusterKeys& keys) {
    const absl::Time end = absl::Now() + kAccountsPatience;
    while (absl::Now() < end) {
      if (Try(accounts, keys).ok()) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }

  const std::string dir_ = ::testing::TempDir() + "/service_accounts_" +
                           ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                           std::to_string(getpid());
  ServiceAccountOptions options_;
  const FakeClusterKeys first_{"first"}, second_{"second"};
  absl::Mutex mutex_;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  int status_ ABSL_GUARDED_BY(mutex_) = 200;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<HttpAnswer> kept_ ABSL_GUARDED_BY(mutex_);
  std::string body_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;  // last: its handler uses what is above
};

TEST_F(ServiceAccountsTest, AFileIsReadAgain) {
  Write("jwks.json", first_.Jwks());
  options_.keys = dir_ + "/jwks.json";
  auto accounts = ServiceAccounts::Open(options_);
  ASSERT_TRUE(accounts.ok()) << accounts.status();
  const auto who = (*accounts)->Identify(first_.Token("ml", "a", absl::Now()), absl::Now());
  ASSERT_TRUE(who.ok()) << who.status();
  EXPECT_EQ(who->name, "ml/a");
  const absl::Status unknown = Try(accounts->get(), second_);
  EXPECT_TRUE(absl::IsUnavailable(unknown)) << unknown;
  EXPECT_THAT(unknown.message(), HasSubstr("a key that this coordinator does not know"));
  Write("jwks.json", second_.Jwks());  // which an unknown key has it read, long before its time
  EXPECT_TRUE(Await(accounts->get(), second_));
  EXPECT_FALSE(Try(accounts->get(), first_).ok()) << "the cluster has given it up";
}

// Half a file, or none, is no reason to shut everybody out.
TEST_F(ServiceAccountsTest, WhatCannotBeReadChangesNothing) {
  options_.every = options_.again;
  StartServer();
  Serve(200, first_.Jwks());
  auto accounts = ServiceAccounts::Open(options_);
  ASSERT_TRUE(accounts.ok()) << accounts.status();
  ASSERT_TRUE(Await(accounts->get(), first_));
  for (const auto& [status, body] : {std::pair<int, std::string>{500, "out of order"},
                                     {200, first_.Jwks().substr(0, 40)},
                                     {200, std::string(kMostKeySetBytes + 1, ' ')}}) {
    Serve(status, body);
    AwaitAsked(2);
    EXPECT_TRUE(Try(accounts->get(), first_).ok()) << status;
  }
}

TEST_F(ServiceAccountsTest, AnAddressThatIsNotThereYetIsTriedAgain) {
  StartServer();
  Serve(503, "");
  auto accounts = ServiceAccounts::Open(options_);
  ASSERT_TRUE(accounts.ok()) << accounts.status();
  EXPECT_TRUE(absl::IsUnavailable(Try(accounts->get(), first_)));
  Serve(200, first_.Jwks());
  EXPECT_TRUE(Await(accounts->get(), first_));
}

TEST_F(ServiceAccountsTest, AServerThatDoesNotAnswerKeepsNobodyFromEnding) {
  StartServer();
  {
    absl::MutexLock lock(&mutex_);
    silent_ = true;
  }
  auto accounts = ServiceAccounts::Open(options_);
  ASSERT_TRUE(accounts.ok()) << accounts.status();
  {
    absl::MutexLock lock(&mutex_);
    const auto asked = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return asked_ > 0; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&asked), kAccountsPatience));
  }
  const absl::Time begin = absl::Now();
  accounts->reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(8)) << "it waited for the answer's time to be over";
  absl::MutexLock lock(&mutex_);
  kept_.clear();
}

TEST_F(ServiceAccountsTest, OnlyTheAuthorityThatIsNamedIsTrusted) {
  StartServer();
  Serve(200, first_.Jwks());
  ASSERT_TRUE(
      InitPki({.dir = dir_ + "/other", .hosts = {}, .lifetime = absl::Hours(1)}, absl::Now()).ok());
  options_.authority = dir_ + "/other/client/ca.crt";
  auto accounts = ServiceAccounts::Open(options_);
  ASSERT_TRUE(accounts.ok()) << accounts.status();
  const absl::Time end = absl::Now() + absl::Milliseconds(200);
  while (absl::Now() < end) ASSERT_FALSE(Try(accounts->get(), first_).ok());
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(asked_, 0) << "the token went to somebody else";
}

TEST_F(ServiceAccountsTest, WrongOptionsAreNamed) {
  const auto problem = [&] {
    return std::string(ServiceAccounts::Open(options_).status().message());
  };
  options_.keys = dir_ + "/none.json";
  EXPECT_THAT(problem(), HasSubstr("--service-account-keys: " + options_.keys));
  options_.authority = "ca.crt";
  EXPECT_THAT(problem(), HasSubstr("go with an https:// address"));
  options_.keys = "http://kubernetes.default.svc/openid/v1/jwks";
  EXPECT_THAT(problem(), HasSubstr("must be a file or an https:// address"));
  options_.claims.audience = "";
  EXPECT_THAT(problem(), HasSubstr("--service-account-audience"));
  options_.claims.issuer = "";
  EXPECT_THAT(problem(), HasSubstr("--service-account-issuer"));
}

}  // namespace
}  // namespace milepost::coordinator
