// A coordinator with TLS on loopback, with certificates of its own, for tests.
#ifndef MILEPOST_COORDINATOR_RPC_SECURE_SERVER_H_
#define MILEPOST_COORDINATOR_RPC_SECURE_SERVER_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/proto_time.h"
#include "common/rpc/status.h"
#include "coordinator/rpc/server.h"
#include "coordinator/security/init_pki.h"
#include "milepost/v1/auth.grpc.pb.h"
#include "milepost/v1/checkpoint.grpc.pb.h"
#include "milepost/v1/job.grpc.pb.h"
#include "milepost/v1/join.grpc.pb.h"
#include "milepost/v1/queue.grpc.pb.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::coordinator {

class SecureServerTest : public ::testing::Test {
 protected:
  SecureServerTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-secure-XXXXXX");
    dir_ = mkdtemp(pattern.data());
    MakePki("pki");
    options_.store.dir = dir_ + "/store";
    options_.tls_dir = dir_ + "/pki/coordinator";
  }
  ~SecureServerTest() override {
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  void MakePki(const std::string& name) {
    const auto made = InitPki(
        {.dir = dir_ + "/" + name, .hosts = {}, .workers = {"a", "b"}, .lifetime = absl::Hours(24)},
        absl::Now());
    ASSERT_TRUE(made.ok()) << made.status();
  }

  void Start() {
    server_.reset();
    auto server = CoordinatorServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::string AdminToken() {
    std::ifstream file(dir_ + "/pki/client/admin-token");
    std::string token;
    file >> token;
    return token;
  }

  Endpoint User(const std::string& token, const std::string& pki = "pki") {
    auto credentials = UserCredentials(dir_ + "/" + pki + "/client/ca.crt", token);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return Endpoint(server_->address(), *credentials);
  }
  Endpoint Worker(const std::string& id, const std::string& pki = "pki") {
    auto credentials = WorkerCredentials(dir_ + "/" + pki + "/workers/" + id);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return Endpoint(server_->address(), *credentials);
  }

  using Grants = std::vector<std::pair<std::string, v1::Role>>;

  // A new token with these, made by the admin.
  v1::CreateTokenResponse MakeToken(const Grants& grants,
                                    absl::Time expire = absl::InfiniteFuture()) {
    v1::CreateTokenRequest request;
    request.set_user("somebody");
    if (expire < absl::InfiniteFuture()) *request.mutable_expire_time() = ToProto(expire);
    for (const auto& [project, role] : grants) {
      v1::Grant* grant = request.add_grants();
      grant->set_project(project);
      grant->set_role(role);
    }
    grpc::ClientContext context;
    v1::CreateTokenResponse response;
    const grpc::Status status = v1::AuthService::NewStub(MakeChannel(User(AdminToken())))
                                    ->CreateToken(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  // Made by the admin, for pool cpu and an hour unless the request says otherwise. Needs
  // options_.worker_authority.
  v1::CreateJoinTokenResponse MakeJoinToken(v1::CreateJoinTokenRequest request) {
    if (request.pool().empty()) request.set_pool("cpu");
    if (!request.has_expire_time()) {
      *request.mutable_expire_time() = ToProto(absl::Now() + absl::Hours(1));
    }
    grpc::ClientContext context;
    v1::CreateJoinTokenResponse response;
    const grpc::Status status = v1::JoinService::NewStub(MakeChannel(User(AdminToken())))
                                    ->CreateJoinToken(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  Endpoint With(const std::string& project, v1::Role role) {
    return User(MakeToken({{project, role}}).secret());
  }

  grpc::Status WhoAmI(const Endpoint& endpoint, v1::Principal* principal = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::Principal ignored;
    return v1::AuthService::NewStub(MakeChannel(endpoint))
        ->WhoAmI(&context, {}, principal == nullptr ? &ignored : principal);
  }

  static v1::SubmitJobRequest Request(const std::string& project) {
    v1::SubmitJobRequest request;
    request.set_project(project);
    v1::JobSpec* spec = request.mutable_spec();
    spec->set_name("test");
    v1::Gpt2Spec* model = spec->mutable_model()->mutable_gpt2();
    model->set_layers(1);
    model->set_width(8);
    model->set_heads(2);
    model->set_context(8);
    model->set_vocabulary(16);
    spec->mutable_data()->set_train("/data/train.npy");
    spec->mutable_train()->set_steps(10);
    spec->mutable_train()->mutable_batch()->set_global(1);
    spec->mutable_train()->mutable_batch()->set_micro(1);
    spec->mutable_resources()->set_ranks(1);
    spec->mutable_restart()->set_backoff_seconds(0.01);
    return request;
  }
  grpc::Status Submit(const Endpoint& endpoint, const v1::SubmitJobRequest& request, v1::Job* job) {
    grpc::ClientContext context;
    return v1::JobService::NewStub(MakeChannel(endpoint))->SubmitJob(&context, request, job);
  }

  std::string dir_;
  ServerOptions options_;
  std::unique_ptr<CoordinatorServer> server_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_SECURE_SERVER_H_
