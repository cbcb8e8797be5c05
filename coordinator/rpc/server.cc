#include "coordinator/rpc/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>

#include <malloc.h>
#include <spdlog/spdlog.h>

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/http/http_server.h"
#include "common/http/listen.h"
#include "common/proto_time.h"
#include "common/regular_file.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/http_pages.h"
#include "coordinator/rpc/listener.h"
#include "coordinator/rpc/services.h"
#include "coordinator/rpc/template_table.h"
#include "coordinator/security/audit_log.h"
#include "coordinator/security/init_pki.h"
#include "coordinator/security/join_table.h"
#include "coordinator/security/token_table.h"
#include "coordinator/security/worker_authority.h"
#include "coordinator/webhooks/courier.h"

namespace milepost::coordinator {

namespace {

// One thread per call in progress: watches, log followers, checkpoint streams. Workers' sessions
// take none. More than users and ranks together may have (Limits, kRankLimits,
// kRankWaitLimits).
constexpr int kMaxThreads = 2048;
constexpr size_t kMaxTokenFileBytes = 4096;
// Of buffers and calls together. Beyond it gRPC ends streams: those who have logged in can do that.
constexpr size_t kMaxRpcBytes = size_t{1} << 30;
constexpr int kMaxFreedBytes = 256 << 20;
constexpr auto kStopGrace = std::chrono::milliseconds(200);
constexpr absl::Duration kCutAfter = absl::Seconds(1);

// What init-pki has left there, if it has.
absl::Status ImportAdminToken(const std::string& tls_dir, TokenTable* tokens) {
  const std::string path = absl::StrCat(tls_dir, "/", kAdminTokenFile);
  const auto text = ReadRegularFile(path, kMaxTokenFileBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  const auto token = ParseTokenDigestLine(text->substr(0, text->find('\n')));
  if (!token.ok()) return Annotate(token.status(), path);
  return tokens->ImportAdmin(*token, absl::Now());
}

// Null: there is to be none.
absl::StatusOr<std::unique_ptr<AuditLog>> OpenAudit(const ServerOptions& options) {
  std::string path = options.audit_path;
  if (path.empty() && !options.tls_dir.empty()) {
    path = absl::StrCat(options.store.dir, "/audit.log");
  }
  if (path.empty()) return nullptr;
  return AuditLog::Open({.path = path});
}

}  // namespace

void TuneProcess() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  mallopt(M_MMAP_THRESHOLD, kMaxMessageBytes * 2);
  mallopt(M_TRIM_THRESHOLD, kMaxFreedBytes);
  mallopt(M_ARENA_MAX, 2);
}

struct CoordinatorServer::Rpc {
  explicit Rpc(Listener its_listener) : listener(std::move(its_listener)) {}
  Listener listener;  // outlives the server
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
};

class CoordinatorServer::StoredJoins : public JoinRecords {
 public:
  explicit StoredJoins(Store* store) : store_(store) {}
  absl::Status Put(const v1::JoinTokenRecord& token) override {
    return store_->PutJoinToken(token);
  }
  absl::Status RemoveToken(const std::string& name) override {
    return store_->DeleteJoinToken(name);
  }
  absl::Status Put(const v1::JoinedWorkerRecord& worker, const v1::JoinTokenRecord* used) override {
    return store_->PutJoined(worker, used);
  }
  absl::Status RemoveWorker(const std::string& worker_id) override {
    return store_->DeleteJoined(worker_id);
  }

 private:
  Store* const store_;
};

// Who becomes a worker with a token.
absl::Status CoordinatorServer::OpenJoins(const ServerOptions& options) {
  stored_joins_ = std::make_unique<StoredJoins>(store_.get());
  MP_ASSIGN_OR_RETURN(std::vector<v1::JoinTokenRecord> tokens, store_->LoadJoinTokens());
  MP_ASSIGN_OR_RETURN(std::vector<v1::JoinedWorkerRecord> workers, store_->LoadJoined());
  joins_ = std::make_unique<JoinTable>(stored_joins_.get(), std::move(tokens), std::move(workers));
  if (options.worker_authority.empty()) {
    if (options.service_accounts.keys.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--service-account-keys: needs --worker-authority, for the certificates of who joins");
  }
  if (options.tls_dir.empty()) {
    return absl::InvalidArgumentError(
        "--worker-authority: needs --tls: without it no worker has a certificate");
  }
  MP_ASSIGN_OR_RETURN(WorkerAuthority authority,
                      WorkerAuthority::Open({.dir = options.worker_authority,
                                             .tls_dir = options.tls_dir,
                                             .lifetime = options.worker_certificate_life}));
  authority_ = std::make_unique<WorkerAuthority>(std::move(authority));
  if (options.service_accounts.keys.empty()) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(accounts_, ServiceAccounts::Open(options.service_accounts));
  return absl::OkStatus();
}

// Whom it lets in.
absl::Status CoordinatorServer::OpenGate(const ServerOptions& options) {
  MP_ASSIGN_OR_RETURN(std::vector<v1::TokenRecord> records, store_->LoadTokens());
  tokens_ = std::make_unique<TokenTable>(
      std::move(records),
      [store = store_.get()](const v1::TokenRecord& record, bool sync) {
        return store->PutToken(record, sync);
      },
      [store = store_.get()](const std::string& name) { return store->DeleteToken(name); });
  const bool tls = !options.tls_dir.empty();
  if (tls) MP_RETURN_IF_ERROR(ImportAdminToken(options.tls_dir, tokens_.get()));
  MP_ASSIGN_OR_RETURN(audit_, OpenAudit(options));
  MP_RETURN_IF_ERROR(OpenJoins(options));
  GateOptions gate{
      .tls = tls, .joins = joins_.get(), .accounts = accounts_.get(), .limits = options.limits};
  if (tls) gate.denied_workers = absl::StrCat(options.tls_dir, "/", kDeniedWorkersFile);
  gate_ = std::make_unique<Gate>(coordinator_.get(), tokens_.get(), audit_.get(), gate);
  return absl::OkStatus();
}

absl::Status CoordinatorServer::OpenHttp(const ServerOptions& options) {
  MP_ASSIGN_OR_RETURN(HostAndPort address, CheckListen("--http", options.http, options.tls_dir));
  HttpOptions http{.tls_dir = options.tls_dir};
  auto sockets = ListenOn(address.host, &address.port);
  if (!sockets.ok()) {
    return absl::UnavailableError(
        absl::StrCat("--http: cannot listen on ", options.http, ": ", sockets.status().message()));
  }
  http.sockets = *std::move(sockets);
  pages_ = std::make_unique<HttpPages>(coordinator_.get(), gate_.get(),
                                       HttpPagesOptions{.tls_dir = options.tls_dir});
  http.handler = [this](const HttpRequest& request, const HttpAnswer& answer) {
    answer(pages_->Answer(request));
  };
  MP_ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(http)));
  http_address_ = absl::StrCat(address.host, ":", address.port);
  return absl::OkStatus();
}

class CoordinatorServer::WebhookListener : public EndListener {
 public:
  WebhookListener(Store* store, const std::vector<Webhook>& webhooks)
      : courier_(webhooks, {.done = [store](uint64_t number) {
                   const absl::Status status = store->ForgetDelivery(number);
                   if (status.ok()) return;
                   spdlog::warn("webhook message {} will be sent again: {}", number,
                                std::string(status.message()));
                 }}) {}

  std::vector<v1::WebhookDelivery> MessagesFor(const v1::Job& job) override {
    std::vector<v1::WebhookDelivery> messages;
    for (const Webhook& webhook : courier_.webhooks()) {
      if (!Wants(webhook, job)) continue;
      v1::WebhookDelivery& message = messages.emplace_back();
      message.set_webhook(webhook.name);
      message.set_body(WebhookBody(job));
      *message.mutable_create_time() = ToProto(absl::Now());
    }
    return messages;
  }
  void Send(uint64_t number, const v1::WebhookDelivery& delivery) override {
    courier_.Send({number, delivery});
  }
  void Stop() { courier_.Stop(); }

 private:
  Courier courier_;
};

CoordinatorServer::CoordinatorServer() = default;
CoordinatorServer::~CoordinatorServer() { Stop(); }

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const ServerOptions& options) {
  MP_ASSIGN_OR_RETURN(Listener listener, Listener::Make(options.listen, options.tls_dir));
  std::unique_ptr<CoordinatorServer> server(new CoordinatorServer);
  MP_ASSIGN_OR_RETURN(server->store_, Store::Open(options.store));
  CoordinatorOptions coordinator_options = options.coordinator;
  if (!options.webhooks.empty()) {
    server->webhooks_ = std::make_unique<WebhookListener>(server->store_.get(), options.webhooks);
    coordinator_options.listener = server->webhooks_.get();
  }
  server->coordinator_ = std::make_unique<Coordinator>(server->store_.get(), coordinator_options);
  MP_RETURN_IF_ERROR(server->coordinator_->Start());

  server->templates_ = std::make_unique<TemplateTable>(server->store_.get());
  MP_RETURN_IF_ERROR(server->templates_->Load());
  MP_RETURN_IF_ERROR(server->OpenGate(options));
  server->rpc_ = std::make_unique<Rpc>(std::move(listener));
  Rpc& rpc = *server->rpc_;
  grpc::ServerBuilder builder;
  rpc.listener.AddTo(&builder, server->gate_->Processor());
  if (!options.tls_dir.empty()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.limits.calls_at_once);
  }
  grpc::ResourceQuota quota("coordinator");
  quota.SetMaxThreads(kMaxThreads);
  quota.Resize(kMaxRpcBytes);
  builder.SetResourceQuota(quota);
  Coordinator* coordinator = server->coordinator_.get();
  Gate* gate = server->gate_.get();
  rpc.services.push_back(MakeAuthService(gate));
  rpc.services.push_back(MakeJoinService(coordinator, gate,
                                         {.joins = server->joins_.get(),
                                          .authority = server->authority_.get(),
                                          .knows_accounts = server->accounts_ != nullptr}));
  rpc.services.push_back(MakeJobService(coordinator, gate));
  rpc.services.push_back(MakeQueueService(coordinator, gate));
  rpc.services.push_back(MakeTemplateService(server->templates_.get(), gate));
  rpc.services.push_back(MakeWorkerService(coordinator, gate));
  rpc.services.push_back(MakeRendezvousService(coordinator, gate));
  rpc.services.push_back(MakeCheckpointService(coordinator, gate));
  rpc.services.push_back(MakeFilesService(coordinator, gate));
  for (const auto& service : rpc.services) builder.RegisterService(service.get());
  gate->call_ends().Intercept(&builder, [&rpc](const grpc::ServerContextBase& context) {
    return rpc.listener.Answering(context);
  });
  if (!options.http.empty()) MP_RETURN_IF_ERROR(server->OpenHttp(options));
  if (options.before_listening) options.before_listening();
  rpc.server = builder.BuildAndStart();
  MP_ASSIGN_OR_RETURN(server->address_, rpc.listener.Open(rpc.server.get()));
  return server;
}

void CoordinatorServer::Stop() {
  http_.reset();  // its pages ask the others
  if (coordinator_ != nullptr) coordinator_->Stop();
  if (webhooks_ != nullptr) webhooks_->Stop();
  if (rpc_ != nullptr && rpc_->server != nullptr) {
    rpc_->listener.Close();
    // gRPC waits for who does not read its answers.
    absl::Notification ended;
    std::thread cutter([&] {
      if (!ended.WaitForNotificationWithTimeout(kCutAfter)) rpc_->listener.CutAll();
    });
    rpc_->server->Shutdown(std::chrono::system_clock::now() + kStopGrace);
    rpc_->server->Wait();
    ended.Notify();
    cutter.join();
    rpc_->server.reset();
  }
}

}  // namespace milepost::coordinator
