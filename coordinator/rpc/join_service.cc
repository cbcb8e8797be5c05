#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/error_details.h"
#include "common/pki/certificate.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "common/worker_id.h"
#include "coordinator/core/decide.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/desks/paging.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/services.h"
#include "coordinator/security/address_range.h"
#include "coordinator/security/join_table.h"
#include "coordinator/security/worker_authority.h"
#include "milepost/v1/join.grpc.pb.h"

namespace milepost::coordinator {
namespace {

constexpr char kJoinTokenList[] = "joinTokens";

absl::Status CheckSize(const std::string& request) {
  if (request.size() <= kMostRequestBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("certificate_request: has ", request.size(),
                                                 " bytes, of at most ", kMostRequestBytes));
}

class JoinServiceImpl : public v1::JoinService::Service {
 public:
  JoinServiceImpl(Coordinator* coordinator, Gate* gate, const JoinServiceOptions& options)
      : coordinator_(coordinator),
        gate_(gate),
        joins_(options.joins),
        authority_(options.authority),
        knows_accounts_(options.knows_accounts) {}

  grpc::Status CreateJoinToken(grpc::ServerContext* context,
                               const v1::CreateJoinTokenRequest* request,
                               v1::CreateJoinTokenResponse* response) override {
    return gate_->Serve(context, "JoinService/CreateJoinToken", *request, Subject::Nothing(),
                        [&](GateCall& call) { return Create(*request, call, response); });
  }

  grpc::Status ListJoinTokens(grpc::ServerContext* context,
                              const v1::ListJoinTokensRequest* request,
                              v1::ListJoinTokensResponse* response) override {
    return gate_->Serve(context, "JoinService/ListJoinTokens", *request, Subject::Nothing(),
                        [&](GateCall&) { return List(*request, response); });
  }

  grpc::Status RevokeJoinToken(grpc::ServerContext* context,
                               const v1::RevokeJoinTokenRequest* request,
                               v1::JoinToken* response) override {
    return gate_->Serve(context, "JoinService/RevokeJoinToken", *request, Subject::Nothing(),
                        [&](GateCall& call) -> absl::Status {
                          call.About(request->name(), "");
                          MP_ASSIGN_OR_RETURN(*response,
                                              joins_->Revoke(request->name(), absl::Now()));
                          return absl::OkStatus();
                        });
  }

  grpc::Status JoinWorker(grpc::ServerContext* context, const v1::JoinWorkerRequest* request,
                          v1::WorkerCertificate* response) override {
    return gate_->Serve(context, "JoinService/JoinWorker", *request, Subject::Nothing(),
                        [&](GateCall& call) { return Join(*request, call, response); });
  }

  grpc::Status RenewWorkerCertificate(grpc::ServerContext* context,
                                      const v1::RenewWorkerCertificateRequest* request,
                                      v1::WorkerCertificate* response) override {
    return gate_->Serve(context, "JoinService/RenewWorkerCertificate", *request, Subject::Nothing(),
                        [&](GateCall& call) { return Renew(*request, call, response); });
  }

 private:
  absl::Status CheckSigns() const {
    if (authority_ != nullptr) return absl::OkStatus();
    return Refusal(v1::ERROR_REASON_NO_WORKER_AUTHORITY, "",
                   "this coordinator signs no certificates: start it with --worker-authority, the "
                   "folder of ca.crt and ca.key, or make them with init-pki");
  }

  // What is wrong with the coordinator's files is nothing for who asks, and may be over soon: they
  // are being replaced.
  absl::StatusOr<KeyPair> ReadKeys() const {
    absl::StatusOr<KeyPair> keys = authority_->Read();
    if (keys.ok()) return keys;
    spdlog::error("cannot sign certificates: {}", std::string(keys.status().message()));
    return absl::UnavailableError(
        "the coordinator cannot sign certificates just now; its log says why");
  }

  absl::Status Create(const v1::CreateJoinTokenRequest& request, GateCall& call,
                      v1::CreateJoinTokenResponse* response) {
    MP_RETURN_IF_ERROR(CheckSigns());
    if (!request.service_account().empty() && !knows_accounts_) {
      return Refusal(v1::ERROR_REASON_NO_WORKER_AUTHORITY, "",
                     "this coordinator knows no cluster's service accounts: start it with "
                     "--service-account-keys");
    }
    MP_ASSIGN_OR_RETURN(std::string trusted, authority_->Trusted());
    MP_ASSIGN_OR_RETURN(*response, joins_->Create(request, call.principal(), absl::Now()));
    response->set_authority(std::move(trusted));
    call.About(response->token().name(), "");
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListJoinTokensRequest& request,
                    v1::ListJoinTokensResponse* response) {
    MP_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
    MP_ASSIGN_OR_RETURN(const std::string after, NameOfToken(request.page_token(), kJoinTokenList));
    std::vector<v1::JoinToken> tokens = joins_->List(after, size + 1);
    if (FillPage(std::move(tokens), size, response->mutable_join_tokens())) {
      response->set_next_page_token(
          TokenOfName(response->join_tokens().rbegin()->name(), kJoinTokenList));
    }
    return absl::OkStatus();
  }

  absl::Status Join(const v1::JoinWorkerRequest& request, GateCall& call,
                    v1::WorkerCertificate* response) {
    const std::string name = WorkerName(request.worker_id());
    call.About(CutUtf8(name, 200), "");
    MP_RETURN_IF_ERROR(CheckSigns());
    MP_RETURN_IF_ERROR(Annotate(CheckWorkerId(request.worker_id()), "worker_id"));
    MP_RETURN_IF_ERROR(gate_->CheckNotDenied(request.worker_id()));
    MP_RETURN_IF_ERROR(CheckSize(request.certificate_request()));
    JoinAsk ask = {
        .worker_id = request.worker_id(), .key_sha256 = {}, .address = AddressOfPeer(call.peer())};
    MP_ASSIGN_OR_RETURN(ask.key_sha256, KeyDigestOfRequest(request.certificate_request()));
    if (const auto worker = coordinator_->workers().Get(name); worker.ok()) {
      ask.known = true;
      ask.alive = worker->state() != v1::WORKER_STATE_DOWN;
      if (IsSet(worker->connect_time())) ask.connected = FromProto(worker->connect_time());
    }
    MP_ASSIGN_OR_RETURN(const KeyPair keys, ReadKeys());
    const absl::Time now = absl::Now();
    MP_ASSIGN_OR_RETURN(const std::string pool, joins_->Join(call.principal().name(), ask,
                                                             now + authority_->lifetime(), now));
    MP_ASSIGN_OR_RETURN(*response, authority_->Issue(keys, ask.worker_id, pool,
                                                     request.certificate_request(), now));
    return absl::OkStatus();
  }

  absl::Status Renew(const v1::RenewWorkerCertificateRequest& request, GateCall& call,
                     v1::WorkerCertificate* response) {
    const std::string name = call.principal().name();
    call.About(name, "");
    MP_RETURN_IF_ERROR(CheckSigns());
    MP_RETURN_IF_ERROR(CheckSize(request.certificate_request()));
    MP_ASSIGN_OR_RETURN(const std::string key, KeyDigestOfRequest(request.certificate_request()));
    MP_ASSIGN_OR_RETURN(const KeyPair keys, ReadKeys());
    const absl::Time now = absl::Now();
    const std::string id(absl::StripPrefix(name, "workers/"));
    MP_ASSIGN_OR_RETURN(const std::string pool,
                        joins_->Renew(id, key, now + authority_->lifetime()));
    MP_ASSIGN_OR_RETURN(*response,
                        authority_->Issue(keys, id, pool, request.certificate_request(), now));
    return absl::OkStatus();
  }

  Coordinator* const coordinator_;
  Gate* const gate_;
  JoinTable* const joins_;
  const WorkerAuthority* const authority_;
  const bool knows_accounts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJoinService(Coordinator* coordinator, Gate* gate,
                                               const JoinServiceOptions& options) {
  return std::make_unique<JoinServiceImpl>(coordinator, gate, options);
}

}  // namespace milepost::coordinator
