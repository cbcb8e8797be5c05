// TLS, tokens, limits and the audit log of a coordinator, over loopback.
#include "coordinator/rpc/secure_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/unique_fd.h"

namespace milepost::coordinator {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kAlpn[] = "\x02h2";

sockaddr_in Loopback(int port) {
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(static_cast<uint16_t>(port));
  return name;
}

UniqueFd ConnectTo(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const sockaddr_in name = Loopback(port);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  return fd;
}

// A TLS client of OpenSSL's own that speaks `version` alone: does the handshake succeed?
bool Handshakes(const std::string& address, int version) {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_min_proto_version(context, version);
  SSL_CTX_set_max_proto_version(context, version);
  SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(kAlpn), 3);
  const UniqueFd fd = ConnectTo(address);
  SSL* ssl = SSL_new(context);
  SSL_set_fd(ssl, fd.get());
  const bool done = SSL_connect(ssl) == 1;
  SSL_free(ssl);
  SSL_CTX_free(context);
  return done;
}

class SecureServer : public SecureServerTest {
 protected:
  SecureServer() { signal(SIGPIPE, SIG_IGN); }  // OpenSSL writes to sockets that are closed

  std::vector<json> AuditLines() {
    std::ifstream file(dir_ + "/store/audit.log");
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  static v1::GetJobRequest Named(const std::string& name) {
    v1::GetJobRequest request;
    request.set_name(name);
    return request;
  }
  void Revoke(const Endpoint& who, const std::string& name) {
    v1::RevokeTokenRequest revoke;
    revoke.set_name(name);
    grpc::ClientContext context;
    v1::Token token;
    const grpc::Status status =
        v1::AuthService::NewStub(MakeChannel(who))->RevokeToken(&context, revoke, &token);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
};

TEST_F(SecureServer, SpeaksTls13Alone) {
  Start();
  EXPECT_TRUE(Handshakes(server_->address(), TLS1_3_VERSION));
  EXPECT_FALSE(Handshakes(server_->address(), TLS1_2_VERSION));
  EXPECT_TRUE(WhoAmI(User(AdminToken())).ok());
}

// A server that would have them speak 1.2 is not talked to.
TEST_F(SecureServer, OurClientsSpeakTls13Alone) {
  Start();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience = {.tv_sec = 20, .tv_usec = 0};
    setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in name = Loopback(0);
    socklen_t size = sizeof name;
    auto* generic = reinterpret_cast<sockaddr*>(&name);
    ASSERT_EQ(bind(listener.get(), generic, size), 0);
    ASSERT_EQ(listen(listener.get(), 4), 0);
    ASSERT_EQ(getsockname(listener.get(), generic, &size), 0);
    const Endpoint endpoint(absl::StrCat("127.0.0.1:", ntohs(name.sin_port)),
                            User(AdminToken()).credentials);
    std::thread caller([&] { EXPECT_FALSE(WhoAmI(endpoint).ok()); });
    SSL_CTX* context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_max_proto_version(context, version);
    const std::string folder = dir_ + "/pki/coordinator/";
    SSL_CTX_use_certificate_file(context, (folder + "tls.crt").c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_use_PrivateKey_file(context, (folder + "tls.key").c_str(), SSL_FILETYPE_PEM);
    const UniqueFd fd(accept(listener.get(), nullptr, nullptr));
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, fd.get());
    EXPECT_EQ(SSL_accept(ssl) == 1, version == TLS1_3_VERSION) << version;
    SSL_free(ssl);
    SSL_CTX_free(context);
    listener.Reset(-1);
    shutdown(fd.get(), SHUT_RDWR);
    caller.join();
  }
}

TEST_F(SecureServer, PlainTextGetsNowhere) {
  Start();
  EXPECT_FALSE(WhoAmI(Endpoint(server_->address())).ok());
  const UniqueFd fd = ConnectTo(server_->address());
  constexpr char kHttp[] = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(write(fd.get(), kHttp, sizeof kHttp), static_cast<ssize_t>(sizeof kHttp));
  char answer[256];
  std::string text;
  for (ssize_t size; (size = read(fd.get(), answer, sizeof answer)) > 0;) text.append(answer, size);
  EXPECT_EQ(text.find("HTTP"), std::string::npos);
}

TEST_F(SecureServer, AnotherAuthorityCountsForNothing) {
  MakePki("foreign");
  Start();
  // Its clients do not trust us, and we do not trust its workers.
  EXPECT_FALSE(WhoAmI(User(AdminToken(), "foreign")).ok());
  std::filesystem::copy_file(dir_ + "/pki/client/ca.crt", dir_ + "/foreign/workers/a/ca.crt",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(WhoAmI(Worker("a", "foreign")).ok());
  v1::Principal principal;
  ASSERT_TRUE(WhoAmI(Worker("a"), &principal).ok());
  EXPECT_EQ(principal.name(), "workers/a");
  // The coordinator's own certificate is no client's.
  auto credentials = WorkerCredentials(dir_ + "/pki/coordinator");
  ASSERT_TRUE(credentials.ok());
  EXPECT_FALSE(WhoAmI(Endpoint(server_->address(), *credentials)).ok());
}

TEST_F(SecureServer, NewCertificatesCountWithoutARestart) {
  Start();
  ASSERT_TRUE(WhoAmI(User(AdminToken())).ok());
  MakePki("next");
  for (const char* file : {"tls.key", "tls.crt", "ca.crt"}) {
    std::filesystem::rename(absl::StrCat(dir_, "/next/coordinator/", file),
                            absl::StrCat(dir_, "/pki/coordinator/", file));
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  grpc::Status status;
  do {
    status = WhoAmI(User(AdminToken(), "next"));
  } while (!status.ok() && absl::Now() < deadline);
  EXPECT_TRUE(status.ok()) << status.error_message();
  // The coordinator's doors hear of it one after the other.
  while (WhoAmI(User(AdminToken())).ok()) ASSERT_LT(absl::Now(), deadline);
}

TEST_F(SecureServer, BadFoldersAreNamed) {
  options_.tls_dir = dir_ + "/none";
  absl::Status status = CoordinatorServer::Start(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("init-pki"));
  options_.tls_dir = dir_ + "/pki/coordinator";
  std::ofstream(options_.tls_dir + "/tls.key") << "nonsense";
  status = CoordinatorServer::Start(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tls.key"));
}

TEST_F(SecureServer, ARefusalOffLoopbackSaysWhatToDo) {
  options_.tls_dir = "";
  options_.listen = "0.0.0.0:0";
  const absl::Status status = CoordinatorServer::Start(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("init-pki"));
}

TEST_F(SecureServer, ForgedAndRevokedTokensGetNowhereAndNoTokenIsKept) {
  Start();
  const v1::CreateTokenResponse made = MakeToken({{"p", v1::ROLE_VIEWER}});
  EXPECT_TRUE(WhoAmI(User(made.secret())).ok());
  std::string forged = made.secret();
  forged.back() = forged.back() == '0' ? '1' : '0';
  EXPECT_EQ(WhoAmI(User(forged)).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(WhoAmI(User("nonsense")).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  Revoke(User(AdminToken()), made.token().name());
  const grpc::Status status = WhoAmI(User(made.secret()));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), HasSubstr("revoked"));
  Start();
  EXPECT_EQ(WhoAmI(User(made.secret())).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(WhoAmI(User(AdminToken())).ok());
  // Nothing on the disk holds a token.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/store")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(text.str().find(made.secret()), std::string::npos) << entry.path();
  }
}

TEST_F(SecureServer, ARevokedAdminTokenIsNotImportedAgain) {
  Start();
  const std::string admin = AdminToken();
  v1::Principal principal;
  ASSERT_TRUE(WhoAmI(User(admin), &principal).ok());
  Revoke(User(admin), principal.name());
  Start();
  EXPECT_EQ(WhoAmI(User(admin)).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(SecureServer, RevokingEndsOpenStreams) {
  Start();
  v1::Job job;
  ASSERT_TRUE(Submit(User(AdminToken()), Request("p"), &job).ok());
  const v1::CreateTokenResponse made = MakeToken({{"p", v1::ROLE_VIEWER}});
  auto jobs = v1::JobService::NewStub(MakeChannel(User(made.secret())));
  grpc::ClientContext watching;
  auto stream = jobs->WatchJob(&watching, Named(job.name()));
  ASSERT_TRUE(stream->Read(&job));
  Revoke(User(AdminToken()), made.token().name());
  while (stream->Read(&job)) continue;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stream->Finish())), v1::ERROR_REASON_TOKEN_REVOKED);
}

TEST_F(SecureServer, AnExpiredTokenGetsNowhereAndItsStreamsEnd) {
  Start();
  v1::Job job;
  ASSERT_TRUE(Submit(User(AdminToken()), Request("p"), &job).ok());
  const absl::Time expire = absl::Now() + absl::Seconds(2);
  const v1::CreateTokenResponse made = MakeToken({{"p", v1::ROLE_VIEWER}}, expire);
  auto jobs = v1::JobService::NewStub(MakeChannel(User(made.secret())));
  grpc::ClientContext watching, reading;
  for (auto* context : {&watching, &reading}) {
    context->set_deadline(absl::ToChronoTime(expire + absl::Seconds(20)));
  }
  v1::StreamLogsRequest follow;
  follow.set_name(job.name());
  follow.set_follow(true);
  auto stream = jobs->WatchJob(&watching, Named(job.name()));
  auto logs = jobs->StreamLogs(&reading, follow);
  ASSERT_TRUE(stream->Read(&job));
  while (stream->Read(&job)) continue;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stream->Finish())), v1::ERROR_REASON_TOKEN_EXPIRED);
  EXPECT_GE(absl::Now(), expire);
  v1::LogLine line;
  while (logs->Read(&line)) continue;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(logs->Finish())), v1::ERROR_REASON_TOKEN_EXPIRED);
  const absl::Status status = FromGrpcStatus(WhoAmI(User(made.secret())));
  EXPECT_TRUE(absl::IsUnauthenticated(status));
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_TOKEN_EXPIRED);
  // Nor after a restart.
  Start();
  EXPECT_EQ(ReasonOf(FromGrpcStatus(WhoAmI(User(made.secret())))), v1::ERROR_REASON_TOKEN_EXPIRED);
}

// Also where the request is refused before it is read, and gRPC carries no details.
TEST_F(SecureServer, WhoIsNotLetInIsToldTheReason) {
  Start();
  const auto reason = [&](const Endpoint& who) { return ReasonOf(FromGrpcStatus(WhoAmI(who))); };
  EXPECT_EQ(reason(User("")), v1::ERROR_REASON_CREDENTIALS_MISSING);
  EXPECT_EQ(reason(User("mp_nonsense")), v1::ERROR_REASON_TOKEN_UNKNOWN);
  const v1::CreateTokenResponse made = MakeToken({{"p", v1::ROLE_VIEWER}});
  EXPECT_EQ(reason(User(made.secret())), v1::ERROR_REASON_UNSPECIFIED);
  Revoke(User(AdminToken()), made.token().name());
  EXPECT_EQ(reason(User(made.secret())), v1::ERROR_REASON_TOKEN_REVOKED);
  EXPECT_TRUE(absl::StartsWith(WhoAmI(User(made.secret())).error_message(), "TOKEN_REVOKED: "));
  v1::Job job;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(Submit(With("p", v1::ROLE_VIEWER), Request("p"), &job))),
            v1::ERROR_REASON_PERMISSION_DENIED);
}

TEST_F(SecureServer, WhoCallsTooMuchIsToldWhenToComeBackAndOthersGoOn) {
  options_.limits.calls_per_second = 0.001;
  options_.limits.burst = 3;
  Start();
  const Endpoint busy = Worker("a");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(WhoAmI(busy).ok());
  const absl::Status status = FromGrpcStatus(WhoAmI(busy));
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_RATE_LIMITED);
  EXPECT_GT(RetryDelayOf(status), absl::Seconds(900));
  v1::QuotaFailure failure;
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.QuotaFailure");
  ASSERT_TRUE(payload.has_value() && failure.ParseFromString(std::string(*payload)));
  EXPECT_EQ(failure.violations(0).subject(), "workers/a");
  EXPECT_TRUE(WhoAmI(Worker("b")).ok());
}

// What ranks call is counted apart, for workers alone: no token gets more calls through it.
TEST_F(SecureServer, WhatRanksCallIsCountedForWhoIsNoWorker) {
  options_.limits.calls_per_second = 0.001;
  options_.limits.burst = 3;
  Start();
  const auto get_key = [&](const Endpoint& who) {
    grpc::ClientContext context;
    v1::GetKeyRequest request;
    request.set_job("jobs/1");
    request.set_generation(1);
    v1::GetKeyResponse response;
    return ReasonOf(FromGrpcStatus(
        v1::RendezvousService::NewStub(MakeChannel(who))->GetKey(&context, request, &response)));
  };
  const Endpoint viewer = With("p", v1::ROLE_VIEWER);
  const Endpoint worker = Worker("a");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get_key(viewer), v1::ERROR_REASON_PERMISSION_DENIED);
  EXPECT_EQ(get_key(viewer), v1::ERROR_REASON_RATE_LIMITED);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get_key(worker), v1::ERROR_REASON_GENERATION_OVER);
}

// Readers that do not read hold what is theirs and no more.
TEST_F(SecureServer, SlowReadersRunIntoTheirOwnLimit) {
  options_.limits.calls_at_once = 4;
  Start();
  v1::Job job;
  ASSERT_TRUE(Submit(User(AdminToken()), Request("p"), &job).ok());
  const Endpoint slow = With("p", v1::ROLE_VIEWER);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<v1::JobService::Stub>> stubs;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Job>>> streams;
  for (int i = 0; i < 5; ++i) {
    // A connection each: the limit is the caller's, not the connection's.
    stubs.push_back(v1::JobService::NewStub(MakeChannel(slow)));
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stubs.back()->WatchJob(contexts.back().get(), Named(job.name())));
    EXPECT_EQ(streams.back()->Read(&job), i < 4);
  }
  EXPECT_EQ(streams.back()->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(WhoAmI(User(AdminToken())).ok());
  contexts[0]->TryCancel();
  while (streams[0]->Read(&job)) continue;
  streams[0]->Finish();
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!WhoAmI(slow).ok()) ASSERT_LT(absl::Now(), deadline);
  for (auto& context : contexts) context->TryCancel();
  for (int i = 1; i < 4; ++i) streams[i]->Finish();
}

TEST_F(SecureServer, OversizedMessagesEndTheCallAlone) {
  Start();
  v1::Job job;
  {
    // Past the client's own limit, so that the server's is met.
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    auto large = v1::JobService::NewStub(
        grpc::CreateCustomChannel(server_->address(), User(AdminToken()).credentials, arguments));
    v1::SubmitJobRequest request = Request("p");
    request.mutable_spec()->set_name(std::string(kMaxMessageBytes + 1, 'x'));
    grpc::ClientContext context;
    EXPECT_EQ(large->SubmitJob(&context, request, &job).error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_TRUE(WhoAmI(User(AdminToken())).ok());
}

TEST_F(SecureServer, TheAuditLogHasChangesAndRefusalsButNoReads) {
  Start();
  v1::Job job;
  v1::SubmitJobRequest request = Request("p");
  request.set_request_id("0c1d");
  ASSERT_TRUE(Submit(With("p", v1::ROLE_SUBMITTER), request, &job).ok());
  const v1::CreateTokenResponse stranger = MakeToken({{"other", v1::ROLE_ADMIN}});
  auto jobs = v1::JobService::NewStub(MakeChannel(User(stranger.secret())));
  {
    grpc::ClientContext context;
    v1::Job seen;
    EXPECT_EQ(jobs->GetJob(&context, Named(job.name()), &seen).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_FALSE(WhoAmI(User("nonsense")).ok());
  EXPECT_TRUE(WhoAmI(User(AdminToken())).ok());
  bool submitted = false, hidden = false, nobody = false;
  for (const json& line : AuditLines()) {
    EXPECT_FALSE(line["method"] == "AuthService/WhoAmI" && line["code"] == "OK") << line;
    submitted |= line["method"] == "JobService/SubmitJob" && line["resource"] == "jobs/1" &&
                 line["project"] == "p" && line["request_id"] == "0c1d" &&
                 line["user"] == "somebody" && line["code"] == "OK" &&
                 std::string(line["peer"]).find("127.0.0.1") != std::string::npos;
    hidden |= line["method"] == "JobService/GetJob" && line["code"] == "PERMISSION_DENIED" &&
              line["resource"] == "jobs/1" && line["principal"] == stranger.token().name();
    nobody |= line["principal"] == "nobody" && line["code"] == "UNAUTHENTICATED";
  }
  EXPECT_TRUE(submitted);
  EXPECT_TRUE(hidden);
  EXPECT_TRUE(nobody);
}

}  // namespace
}  // namespace milepost::coordinator
