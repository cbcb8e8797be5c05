#include "worker/join/joiner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/time/clock.h"
#include "common/atomic_file.h"
#include "common/error_details.h"
#include "common/regular_file.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/secure_server.h"

namespace milepost::worker {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

TEST(RenewTimeTest, IsAfterHalfOfItsLifeOrALittleBefore) {
  const Certificate certificate = {.not_before = kNow, .not_after = kNow + absl::Hours(300)};
  EXPECT_EQ(RenewTime(certificate, 0), kNow + absl::Hours(150));
  EXPECT_EQ(RenewTime(certificate, 0.5), kNow + absl::Hours(135));
}

TEST(JoinTokenTest, IsALineAndACertificate) {
  const std::string secret = "mpj_0123456789ab_" + std::string(64, 'f');
  const KeyPair authority = *MakeAuthority("a", *MakePrivateKey(), kNow, absl::Hours(1));
  const auto alone = ParseJoinToken("  " + secret + "\n\n");
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->secret, secret);
  EXPECT_EQ(alone->authority, "");
  const auto both = ParseJoinToken(secret + "\n" + authority.certificate);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->secret, secret);
  EXPECT_TRUE(*HasCertificate(both->authority, authority.certificate));
  for (const std::string& bad :
       {std::string(), std::string("mpt_0123456789ab_ff"), secret + "\nnonsense",
        "mpj_\x01" + secret, secret + " " + secret}) {
    const auto parsed = ParseJoinToken(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << parsed.status();
    EXPECT_THAT(parsed.status().message(), ::testing::Not(HasSubstr(secret)));
  }
}

TEST(JoinTokenTest, MayBeThatOfAServiceAccount) {
  const std::string token = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UifQ.DtEhU3_-x";
  const auto parsed = ParseJoinToken(token + "\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->secret, token);
  for (const std::string& bad : {std::string("eyJhbGci.eyJpc3"), token + ".x", token + "\x01",
                                 "eyJ." + std::string(9'000, 'a') + ".x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseJoinToken(bad).status()));
  }
}

class JoinerTest : public coordinator::SecureServerTest {
 protected:
  JoinerTest() {
    options_.worker_authority = dir_ + "/pki/ca";
    Start();
  }
  JoinOptions Options(const std::string& id) {
    v1::CreateJoinTokenRequest request;
    request.set_pool("a100");
    const v1::CreateJoinTokenResponse made = MakeJoinToken(request);
    return {.coordinator = server_->address(),
            .tls_dir = dir_ + "/hosts/" + id,
            .id = id,
            .token = Always({made.secret(), made.authority()})};
  }
  static JoinTokenSource Always(JoinToken token) {
    return [token = std::move(token)] { return token; };
  }
  std::string CertificateOf(const JoinOptions& options) {
    return *ReadRegularFile(options.tls_dir + "/tls.crt", 1 << 20);
  }
  bool LetsIn(const JoinOptions& options) {
    auto credentials = WorkerCredentials(options.tls_dir);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    if (!credentials.ok()) return false;
    coordinator::FakeWorker worker(Endpoint(server_->address(), *credentials), options.id, 1);
    return worker.Receive().has_welcome();
  }
  static constexpr auto kNever = [](absl::Duration) { return false; };
};

TEST_F(JoinerTest, AHostWithATokenBecomesAWorker) {
  const JoinOptions options = Options("gpu-01");
  const absl::Status joined = JoinIfNeeded(options, kNever);
  ASSERT_TRUE(joined.ok()) << joined;
  EXPECT_TRUE(LetsIn(options));
  struct stat info = {};
  ASSERT_EQ(stat((options.tls_dir + "/tls.key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(options.tls_dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  // The next start needs no token.
  const std::string before = CertificateOf(options);
  JoinOptions again = options;
  again.token = nullptr;
  EXPECT_TRUE(JoinIfNeeded(again, kNever).ok());
  EXPECT_TRUE(JoinIfNeeded(options, kNever).ok());
  EXPECT_EQ(CertificateOf(options), before);
}

TEST_F(JoinerTest, WithoutATokenTheMissingCertificateIsNamed) {
  JoinOptions options = Options("gpu-01");
  options.token = nullptr;
  const absl::Status status = JoinIfNeeded(options, kNever);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("ca.crt"));
}

TEST_F(JoinerTest, ACoordinatorThatIsAwayIsWaitedFor) {
  const JoinOptions options = Options("gpu-01");
  options_.listen = server_->address();
  server_.reset();
  int pauses = 0;
  const absl::Status joined = JoinIfNeeded(options, [&](absl::Duration) {
    if (++pauses == 2) Start();
    return true;
  });
  EXPECT_TRUE(joined.ok()) << joined;
  EXPECT_GE(pauses, 2);
  EXPECT_TRUE(LetsIn(options));
}

TEST_F(JoinerTest, WhoIsToldToStopStops) {
  const JoinOptions options = Options("gpu-01");
  server_.reset();
  EXPECT_TRUE(absl::IsCancelled(JoinIfNeeded(options, kNever)));
}

TEST_F(JoinerTest, ARefusalEndsIt) {
  JoinOptions options = Options("gpu-01");
  JoinToken token = *options.token();
  token.secret.back() = token.secret.back() == '0' ? '1' : '0';
  options.token = Always(token);
  absl::Status status = JoinIfNeeded(options, [](absl::Duration) { return true; });
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("cannot join as gpu-01"));
  EXPECT_EQ(std::string(status.message()).find(token.secret), std::string::npos);
}

// Nobody else is told the token.
TEST_F(JoinerTest, ACoordinatorOfAnotherAuthorityGetsNothing) {
  JoinOptions options = Options("gpu-01");
  MakePki("other");
  options.token =
      Always({options.token()->secret, *ReadRegularFile(dir_ + "/other/client/ca.crt", 1 << 20)});
  EXPECT_TRUE(absl::IsCancelled(JoinIfNeeded(options, kNever)));
  grpc::ClientContext context;
  v1::ListJoinTokensResponse tokens;
  ASSERT_TRUE(v1::JoinService::NewStub(MakeChannel(User(AdminToken())))
                  ->ListJoinTokens(&context, {}, &tokens)
                  .ok());
  ASSERT_EQ(tokens.join_tokens_size(), 1);
  EXPECT_EQ(tokens.join_tokens(0).used(), 0);
}

TEST_F(JoinerTest, ATokenWithoutItsAuthorityIsToldSo) {
  JoinOptions options = Options("gpu-01");
  options.token = Always({options.token()->secret, ""});
  const absl::Status status = JoinIfNeeded(options, kNever);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("prints after it"));
}

TEST_F(JoinerTest, TheAuthorityMayComeInAFileOfItsOwn) {
  JoinOptions options = Options("gpu-01");
  options.token = Always({options.token()->secret, ""});
  options.authority = dir_ + "/no.crt";
  EXPECT_TRUE(absl::IsNotFound(JoinIfNeeded(options, kNever)));
  options.authority = dir_ + "/pki/client/ca.crt";
  EXPECT_TRUE(JoinIfNeeded(options, kNever).ok());
  EXPECT_TRUE(LetsIn(options));
}

// A cluster replaces a service account's token before it ends.
TEST_F(JoinerTest, EachTryReadsTheTokenAnew) {
  JoinOptions options = Options("gpu-01");
  const JoinToken good = *options.token();
  options_.listen = server_->address();
  server_.reset();
  int reads = 0;
  options.token = [&]() -> absl::StatusOr<JoinToken> {
    return ++reads == 1 ? JoinToken{"mpj_0123456789ab_ff", good.authority} : good;
  };
  const absl::Status joined = JoinIfNeeded(options, [&](absl::Duration) {
    Start();
    return true;
  });
  EXPECT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(reads, 2);
}

TEST_F(JoinerTest, OneThatHasEndedIsGotAnewAndTheNewerAuthoritiesStay) {
  // It has ended as soon as it is made.
  options_.worker_certificate_life = -absl::Minutes(1);
  Start();
  const JoinOptions options = Options("gpu-01");
  ASSERT_TRUE(JoinIfNeeded(options, kNever).ok());
  const std::string before = CertificateOf(options);
  MakePki("next");
  const std::string both = *ReadRegularFile(options.tls_dir + "/ca.crt", 1 << 20) +
                           *ReadRegularFile(dir_ + "/next/client/ca.crt", 1 << 20);
  ASSERT_TRUE(WriteFileAtOnce(options.tls_dir + "/ca.crt", both, kPublicMode).ok());
  options_.listen = server_->address();
  server_.reset();
  EXPECT_TRUE(absl::IsCancelled(JoinIfNeeded(options, kNever)));
  EXPECT_EQ(*ReadRegularFile(options.tls_dir + "/ca.crt", 1 << 20), both) << "nobody has answered";
  options_.worker_certificate_life = absl::Hours(24);
  Start();
  EXPECT_TRUE(JoinIfNeeded(options, kNever).ok());
  EXPECT_NE(CertificateOf(options), before);
  EXPECT_TRUE(LetsIn(options));
}

// The store was purged, and the authority with it.
TEST_F(JoinerTest, ATokenOfANewerAuthorityIsUsedThoughACertificateHolds) {
  const JoinOptions before = Options("gpu-01");
  ASSERT_TRUE(JoinIfNeeded(before, kNever).ok());
  const std::string gone = CertificateOf(before);
  server_.reset();
  std::filesystem::rename(dir_ + "/pki", dir_ + "/old");
  std::filesystem::remove_all(options_.store.dir);
  MakePki("pki");
  Start();
  const JoinOptions now = Options("gpu-01");
  ASSERT_TRUE(JoinIfNeeded(now, kNever).ok());
  ASSERT_NE(CertificateOf(now), gone);
  EXPECT_TRUE(LetsIn(now));
  // The next start finds what it knows.
  const std::string certificate = CertificateOf(now);
  EXPECT_TRUE(JoinIfNeeded(now, kNever).ok());
  EXPECT_EQ(CertificateOf(now), certificate);
}

// What holds is not given up for a token that is refused.
TEST_F(JoinerTest, ARefusedTokenOfANewerAuthorityCostsNothing) {
  const JoinOptions options = Options("gpu-01");
  ASSERT_TRUE(JoinIfNeeded(options, kNever).ok());
  const std::string certificate = CertificateOf(options);
  MakePki("next");
  JoinOptions refused = options;
  refused.authority = dir_ + "/pki/client/ca.crt";
  refused.token = Always({"mpj_0123456789ab_" + std::string(64, 'f'),
                          *ReadRegularFile(dir_ + "/next/client/ca.crt", 1 << 20)});
  EXPECT_TRUE(JoinIfNeeded(refused, kNever).ok());
  EXPECT_EQ(CertificateOf(options), certificate);
  EXPECT_TRUE(LetsIn(options));
}

// Its maker renews it.
TEST_F(JoinerTest, ACertificateThatCameOtherwiseIsLeftAlone) {
  options_.worker_certificate_life = absl::Minutes(4);
  Start();
  const JoinOptions options = {
      .coordinator = server_->address(), .tls_dir = dir_ + "/pki/workers/a", .id = "a"};
  { const CertificateRenewer renewer(options); }
  server_.reset();
  const std::string log = *ReadRegularFile(options_.store.dir + "/audit.log", 1 << 20);
  EXPECT_EQ(log.find("RenewWorkerCertificate"), std::string::npos);
}

TEST_F(JoinerTest, AWorkerThatIsConnectedIsWaitedForForMinutes) {
  const JoinOptions first = Options("gpu-01");
  ASSERT_TRUE(JoinIfNeeded(first, kNever).ok());
  auto credentials = WorkerCredentials(first.tls_dir);
  ASSERT_TRUE(credentials.ok());
  coordinator::FakeWorker worker(Endpoint(server_->address(), *credentials), "gpu-01", 1);
  ASSERT_TRUE(worker.Receive().has_welcome());
  JoinOptions second = first;
  second.tls_dir = dir_ + "/hosts/anew";
  absl::Duration waited;
  const absl::Status status = JoinIfNeeded(second, [&](absl::Duration pause) {
    waited += pause;
    return true;
  });
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_WORKER_CONNECTED) << status;
  EXPECT_GE(waited, absl::Minutes(1));
  EXPECT_LT(waited, absl::Minutes(4));
}

TEST_F(JoinerTest, ACertificateIsRenewedBeforeItEnds) {
  // Certificates begin 10 minutes before they are made: of 14 more than half are over.
  options_.worker_certificate_life = absl::Minutes(4);
  Start();
  const JoinOptions options = Options("gpu-01");
  ASSERT_TRUE(JoinIfNeeded(options, kNever).ok());
  const std::string before = CertificateOf(options);
  CertificateRenewer renewer(options);
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (CertificateOf(options) == before && absl::Now() < end)
    absl::SleepFor(absl::Milliseconds(20));
  EXPECT_NE(CertificateOf(options), before);
  EXPECT_TRUE(LetsIn(options));
}

}  // namespace
}  // namespace milepost::worker
