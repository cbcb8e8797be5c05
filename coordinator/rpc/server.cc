#include "coordinator/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>

#include <malloc.h>

#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "coordinator/rpc/services.h"

namespace milepost::coordinator {

namespace {

// One thread per call in progress: watches, log followers, checkpoint streams. Workers' sessions
// take none.
constexpr int kMaxThreads = 1024;
constexpr int kMaxFreedBytes = 256 << 20;
constexpr int kMinPingIntervalMs = 5000;
constexpr auto kStopGrace = std::chrono::milliseconds(200);

absl::Status CheckAddress(const std::string& listen, bool insecure, std::string* host) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: expected HOST:PORT, not '", listen, "'"));
  }
  *host = listen.substr(0, colon);
  const bool loopback = *host == "localhost" || *host == "[::1]" || absl::StartsWith(*host, "127.");
  if (loopback || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen: ", listen,
      " is not a loopback address, and callers are not authenticated yet: "
      "anybody who reaches it can run jobs. Listen on 127.0.0.1, or give --insecure in a network "
      "that you trust"));
}

void InitialiseGrpcOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, kMaxMessageBytes * 2);
  mallopt(M_TRIM_THRESHOLD, kMaxFreedBytes);
  mallopt(M_ARENA_MAX, 2);
}

struct CoordinatorServer::Rpc {
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
};

CoordinatorServer::CoordinatorServer() = default;
CoordinatorServer::~CoordinatorServer() { Stop(); }

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const ServerOptions& options) {
  std::string host;
  MP_RETURN_IF_ERROR(CheckAddress(options.listen, options.insecure, &host));
  InitialiseGrpcOnce();
  std::unique_ptr<CoordinatorServer> server(new CoordinatorServer);
  MP_ASSIGN_OR_RETURN(server->store_, Store::Open(options.store));
  server->coordinator_ = std::make_unique<Coordinator>(server->store_.get(), options.coordinator);
  MP_RETURN_IF_ERROR(server->coordinator_->Start());

  server->rpc_ = std::make_unique<Rpc>();
  Rpc& rpc = *server->rpc_;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else two servers share a port
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  grpc::ResourceQuota quota("coordinator");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  Coordinator* coordinator = server->coordinator_.get();
  rpc.services.push_back(MakeJobService(coordinator));
  rpc.services.push_back(MakeQueueService(coordinator));
  rpc.services.push_back(MakeWorkerService(coordinator));
  rpc.services.push_back(MakeRendezvousService(coordinator));
  rpc.services.push_back(MakeCheckpointService(coordinator));
  for (const auto& service : rpc.services) builder.RegisterService(service.get());
  rpc.server = builder.BuildAndStart();
  if (rpc.server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", options.listen,
        ": the address is in use or not of this machine; stop the other process, or give another "
        "--listen"));
  }
  server->address_ = absl::StrCat(host, ":", port);
  return server;
}

void CoordinatorServer::Stop() {
  if (coordinator_ != nullptr) coordinator_->Stop();
  if (rpc_ != nullptr && rpc_->server != nullptr) {
    rpc_->server->Shutdown(std::chrono::system_clock::now() + kStopGrace);
    rpc_->server->Wait();
    rpc_->server.reset();
  }
}

}  // namespace milepost::coordinator
