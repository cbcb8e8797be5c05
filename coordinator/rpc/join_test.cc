// Hosts that join with a token, over TLS: what a token gives and what it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "common/atomic_file.h"
#include "common/error_details.h"
#include "common/pki/certificate.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/secure_server.h"
#include "coordinator/security/fake_cluster_keys.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class JoinTest : public SecureServerTest {
 protected:
  JoinTest() {
    options_.worker_authority = dir_ + "/pki/ca";
    Start();
  }

  struct Host {
    std::string id;
    std::string key = *MakePrivateKey();
    std::string folder;
  };
  Host NewHost(const std::string& id) {
    Host host{.id = id};
    host.folder = dir_ + "/hosts/" + id + "-" + std::to_string(++hosts_);
    std::filesystem::create_directories(host.folder);
    EXPECT_TRUE(WriteFileAtOnce(host.folder + "/tls.key", host.key, kSecretMode).ok());
    return host;
  }
  static v1::CreateJoinTokenRequest Pool(const std::string& pool) {
    v1::CreateJoinTokenRequest request;
    request.set_pool(pool);
    return request;
  }
  absl::Status Join(const Host& host, const Endpoint& with, v1::WorkerCertificate* made = nullptr) {
    v1::JoinWorkerRequest request;
    request.set_worker_id(host.id);
    request.set_certificate_request(*MakeCertificateRequest(host.id, host.key));
    grpc::ClientContext context;
    v1::WorkerCertificate certificate;
    const absl::Status status = FromGrpcStatus(
        v1::JoinService::NewStub(MakeChannel(with))->JoinWorker(&context, request, &certificate));
    if (status.ok()) Keep(host, certificate);
    if (made != nullptr) *made = certificate;
    return status;
  }
  static void Keep(const Host& host, const v1::WorkerCertificate& made) {
    EXPECT_TRUE(WriteFileAtOnce(host.folder + "/ca.crt", made.authority(), kPublicMode).ok());
    EXPECT_TRUE(WriteFileAtOnce(host.folder + "/tls.crt", made.certificate(), kPublicMode).ok());
  }
  // With the host's certificate.
  Endpoint As(const Host& host) {
    auto credentials = WorkerCredentials(host.folder);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return Endpoint(server_->address(), *credentials);
  }
  absl::Status Renew(const Host& host, const Endpoint& with, v1::WorkerCertificate* made) {
    v1::RenewWorkerCertificateRequest request;
    request.set_certificate_request(*MakeCertificateRequest(host.id, host.key));
    grpc::ClientContext context;
    return FromGrpcStatus(v1::JoinService::NewStub(MakeChannel(with))
                              ->RenewWorkerCertificate(&context, request, made));
  }
  v1::Worker Describe(const std::string& id) {
    grpc::ClientContext context;
    v1::GetWorkerRequest request;
    request.set_name("workers/" + id);
    v1::Worker worker;
    EXPECT_TRUE(v1::WorkerService::NewStub(MakeChannel(User(AdminToken())))
                    ->GetWorker(&context, request, &worker)
                    .ok());
    return worker;
  }

  int hosts_ = 0;
};

TEST_F(JoinTest, AHostJoinsItsPoolAndRenews) {
  const v1::CreateJoinTokenResponse token = MakeJoinToken(Pool("a100"));
  EXPECT_THAT(token.authority(), HasSubstr("BEGIN CERTIFICATE"));
  const Host host = NewHost("gpu-01");
  v1::WorkerCertificate made;
  absl::Status status = Join(host, User(token.secret()), &made);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(made.pool(), "a100");
  FakeWorker worker(As(host), "gpu-01", 1);
  EXPECT_TRUE(worker.Receive().has_welcome());
  EXPECT_EQ(Describe("gpu-01").labels().at("pool"), "a100");

  v1::WorkerCertificate renewed;
  status = Renew(host, As(host), &renewed);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(renewed.pool(), "a100");
  EXPECT_NE(renewed.certificate(), made.certificate());
  EXPECT_TRUE(CheckKeyIsOf(renewed.certificate(), host.key).ok());
}

// A pod shows the token of its service account.
TEST_F(JoinTest, AServiceAccountJoinsThePoolThatItIsFor) {
  const FakeClusterKeys cluster("a"), stranger("a");
  options_.service_accounts.keys = dir_ + "/jwks.json";
  options_.service_accounts.claims.issuer = FakeClusterKeys::kIssuer;
  ASSERT_TRUE(WriteFileAtOnce(options_.service_accounts.keys, cluster.Jwks(), kPublicMode).ok());
  Start();
  const absl::Time now = absl::Now();
  const Endpoint pod = User(cluster.Token("ml", "h100", now));
  const absl::Status too_early = Join(NewHost("gpu-01"), pod);
  EXPECT_TRUE(absl::IsUnauthenticated(too_early)) << too_early;
  EXPECT_THAT(too_early.message(), HasSubstr("--service-account ml/h100"));

  v1::CreateJoinTokenRequest request = Pool("h100");
  request.set_service_account("ml/h100");
  request.set_worker_pattern("gpu-*");
  const v1::CreateJoinTokenResponse token = MakeJoinToken(request);
  EXPECT_EQ(token.secret(), "");
  EXPECT_EQ(token.token().service_account(), "ml/h100");
  v1::WorkerCertificate made;
  const absl::Status joined = Join(NewHost("gpu-01"), pod, &made);
  ASSERT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(made.pool(), "h100");

  // Nothing else by it: what a join token is bound to, it is bound to as well.
  EXPECT_TRUE(absl::IsPermissionDenied(FromGrpcStatus(WhoAmI(pod))));
  EXPECT_TRUE(absl::IsPermissionDenied(Join(NewHost("cpu-01"), pod)));
  for (const std::string& other :
       {cluster.Token("ml", "other", now), cluster.Token("h100", "ml", now),
        stranger.Token("ml", "h100", now), cluster.Token("ml", "h100", now - absl::Hours(2))}) {
    EXPECT_TRUE(absl::IsUnauthenticated(Join(NewHost("gpu-02"), User(other))));
  }
  grpc::ClientContext context;
  v1::RevokeJoinTokenRequest revoke;
  revoke.set_name(token.token().name());
  v1::JoinToken revoked;
  ASSERT_TRUE(v1::JoinService::NewStub(MakeChannel(User(AdminToken())))
                  ->RevokeJoinToken(&context, revoke, &revoked)
                  .ok());
  EXPECT_EQ(ReasonOf(Join(NewHost("gpu-03"), pod)), v1::ERROR_REASON_TOKEN_REVOKED);
}

TEST_F(JoinTest, WithoutAClustersKeysNoServiceAccountJoins) {
  v1::CreateJoinTokenRequest request = Pool("h100");
  request.set_service_account("ml/h100");
  *request.mutable_expire_time() = ToProto(absl::Now() + absl::Hours(1));
  grpc::ClientContext context;
  v1::CreateJoinTokenResponse made;
  const absl::Status status =
      FromGrpcStatus(v1::JoinService::NewStub(MakeChannel(User(AdminToken())))
                         ->CreateJoinToken(&context, request, &made));
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_NO_WORKER_AUTHORITY) << status;
  EXPECT_THAT(status.message(), HasSubstr("--service-account-keys"));
  const FakeClusterKeys cluster("a");
  EXPECT_TRUE(absl::IsUnauthenticated(
      Join(NewHost("gpu-01"), User(cluster.Token("ml", "h100", absl::Now())))));
}

// All methods by a join token: access_test.cc.
TEST_F(JoinTest, AStolenTokenStartsWorkersOfItsPoolAndNothingElse) {
  v1::CreateJoinTokenRequest request = Pool("a100");
  request.set_worker_pattern("gpu-*");
  const v1::CreateJoinTokenResponse token = MakeJoinToken(request);
  const Endpoint thief = User(token.secret());
  EXPECT_TRUE(absl::IsPermissionDenied(FromGrpcStatus(WhoAmI(thief))));

  // Not as a worker that is there, nor under a name that it is not for, nor as another pool's.
  FakeWorker own(Worker("a"), "a", 1);
  ASSERT_TRUE(own.Receive().has_welcome());
  const absl::Status as_own =
      Join(NewHost("a"), User(MakeJoinToken(Pool("a100")).secret()));  // for any name
  EXPECT_TRUE(absl::IsPermissionDenied(as_own)) << as_own;
  EXPECT_THAT(as_own.message(), HasSubstr("a certificate of its own"));
  EXPECT_TRUE(absl::IsPermissionDenied(Join(NewHost("head"), thief)));
  const v1::CreateJoinTokenResponse other = MakeJoinToken(Pool("h200"));
  ASSERT_TRUE(Join(NewHost("gpu-h"), User(other.secret())).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Join(NewHost("gpu-h"), thief)));

  // As a worker of its pool, and with that certificate not as another worker or pool, nor user.
  const Host host = NewHost("gpu-t");
  ASSERT_TRUE(Join(host, thief).ok());
  FakeWorker as_other(As(host), "a", 2);
  EXPECT_EQ(as_other.Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  FakeWorker in_other(As(host), "gpu-t", 1, 1, {}, 0, v1::DEVICE_KIND_CPU, 0, "h200");
  const grpc::Status refused = in_other.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("pool a100"));
  v1::Job job;
  EXPECT_EQ(Submit(As(host), Request("p"), &job).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(absl::IsPermissionDenied(Join(NewHost("gpu-u"), As(host)))) << "no token comes of it";
}

TEST_F(JoinTest, ARevokedTokenLetsNobodyInAndWhoHasJoinedStays) {
  const v1::CreateJoinTokenResponse token = MakeJoinToken(Pool("a100"));
  const Host host = NewHost("gpu-01");
  ASSERT_TRUE(Join(host, User(token.secret())).ok());
  v1::RevokeJoinTokenRequest revoke;
  revoke.set_name(token.token().name());
  v1::JoinToken revoked;
  grpc::ClientContext context;
  ASSERT_TRUE(v1::JoinService::NewStub(MakeChannel(User(AdminToken())))
                  ->RevokeJoinToken(&context, revoke, &revoked)
                  .ok());
  Start();  // it is stored
  EXPECT_EQ(ReasonOf(Join(NewHost("gpu-02"), User(token.secret()))),
            v1::ERROR_REASON_TOKEN_REVOKED);
  FakeWorker worker(As(host), "gpu-01", 1);
  EXPECT_TRUE(worker.Receive().has_welcome());
  v1::WorkerCertificate renewed;
  EXPECT_TRUE(Renew(host, As(host), &renewed).ok());
}

TEST_F(JoinTest, WhoIsShutOutNeitherJoinsNorRenews) {
  const v1::CreateJoinTokenResponse token = MakeJoinToken(Pool("a100"));
  const Host host = NewHost("gpu-01");
  ASSERT_TRUE(Join(host, User(token.secret())).ok());
  ASSERT_TRUE(
      WriteFileAtOnce(dir_ + "/pki/coordinator/denied-workers", "gpu-01\n", kPublicMode).ok());
  Start();  // looks at the file anew
  v1::WorkerCertificate renewed;
  EXPECT_EQ(ReasonOf(Renew(host, As(host), &renewed)), v1::ERROR_REASON_WORKER_DENIED);
  EXPECT_EQ(ReasonOf(Join(host, User(token.secret()))), v1::ERROR_REASON_WORKER_DENIED);
  EXPECT_EQ(ReasonOf(Join(NewHost("gpu-01"), User(token.secret()))),
            v1::ERROR_REASON_WORKER_DENIED);
}

TEST_F(JoinTest, BadRequestsAreRefusedAndCostNoUse) {
  v1::CreateJoinTokenRequest create = Pool("a100");
  create.set_uses(1);
  const v1::CreateJoinTokenResponse token = MakeJoinToken(create);
  auto stub = v1::JoinService::NewStub(MakeChannel(User(token.secret())));
  v1::JoinWorkerRequest request;
  request.set_worker_id("gpu-01");
  for (const std::string& bad :
       {std::string(), std::string("nonsense"), std::string(20 << 10, 'x')}) {
    request.set_certificate_request(bad);
    grpc::ClientContext context;
    v1::WorkerCertificate made;
    const grpc::Status status = stub->JoinWorker(&context, request, &made);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
  EXPECT_TRUE(Join(NewHost("gpu-01"), User(token.secret())).ok());
}

TEST_F(JoinTest, TheAuditLogTellsWhoJoinedWithWhat) {
  const v1::CreateJoinTokenResponse token = MakeJoinToken(Pool("a100"));
  ASSERT_TRUE(Join(NewHost("gpu-01"), User(token.secret())).ok());
  server_.reset();
  std::ifstream log(options_.store.dir + "/audit.log");
  std::string line;
  bool created = false, joined = false;
  while (std::getline(log, line)) {
    EXPECT_EQ(line.find(token.secret()), std::string::npos);
    const auto entry = nlohmann::json::parse(line);
    created = created || (entry["method"] == "JoinService/CreateJoinToken" &&
                          entry["resource"] == token.token().name());
    joined = joined ||
             (entry["method"] == "JoinService/JoinWorker" &&
              entry["principal"] == token.token().name() && entry["resource"] == "workers/gpu-01");
  }
  EXPECT_TRUE(created);
  EXPECT_TRUE(joined);
}

// Its lease holds yet, as those of all workers do after a coordinator's restart.
TEST_F(JoinTest, AWorkerThatWasJustThereIsNotReplaced) {
  const v1::CreateJoinTokenResponse token = MakeJoinToken(Pool("a100"));
  const Host host = NewHost("gpu-01");
  ASSERT_TRUE(Join(host, User(token.secret())).ok());
  FakeWorker worker(As(host), "gpu-01", 1);
  ASSERT_TRUE(worker.Receive().has_welcome());
  Start();
  EXPECT_EQ(ReasonOf(Join(NewHost("gpu-01"), User(token.secret()))),
            v1::ERROR_REASON_WORKER_CONNECTED);
  EXPECT_TRUE(Join(host, User(token.secret())).ok()) << "it itself may";
}

TEST_F(JoinTest, FilesThatAreBeingReplacedCostNobodyItsPlace) {
  const v1::CreateJoinTokenResponse token = MakeJoinToken(Pool("a100"));
  ASSERT_TRUE(WriteFileAtOnce(dir_ + "/pki/ca/ca.key", *MakePrivateKey(), kSecretMode).ok());
  const absl::Status status = Join(NewHost("gpu-01"), User(token.secret()));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message().find(dir_), absl::string_view::npos) << status;
}

TEST_F(JoinTest, WithoutAnAuthorityNobodyJoins) {
  options_.worker_authority.clear();
  Start();
  grpc::ClientContext context;
  v1::CreateJoinTokenRequest request = Pool("a100");
  *request.mutable_expire_time() = ToProto(absl::Now() + absl::Hours(1));
  v1::CreateJoinTokenResponse response;
  const absl::Status status =
      FromGrpcStatus(v1::JoinService::NewStub(MakeChannel(User(AdminToken())))
                         ->CreateJoinToken(&context, request, &response));
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_NO_WORKER_AUTHORITY) << status;
  EXPECT_THAT(status.message(), HasSubstr("--worker-authority"));
}

TEST_F(JoinTest, AnAuthorityThatTheCoordinatorDoesNotTrustIsRefusedAtTheStart) {
  MakePki("other");
  options_.worker_authority = dir_ + "/other/ca";
  server_.reset();
  auto server = CoordinatorServer::Start(options_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kFailedPrecondition) << server.status();
  EXPECT_THAT(server.status().message(), HasSubstr("append it to"));
  std::filesystem::permissions(dir_ + "/pki/ca/ca.key", std::filesystem::perms(0644));
  options_.worker_authority = dir_ + "/pki/ca";
  server = CoordinatorServer::Start(options_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kPermissionDenied) << server.status();
}

}  // namespace
}  // namespace milepost::coordinator
