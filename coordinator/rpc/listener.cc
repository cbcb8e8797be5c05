#include "coordinator/rpc/listener.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

// Clients that have several coordinators to choose from ask every two seconds.
constexpr int kMinPingIntervalMs = 1000;
constexpr int kMaxPingStrikes = 2;
constexpr int kMaxHeaderBytes = 8 << 10;
constexpr int kHandshakeMs = 15'000;
constexpr int kIdleConnectionMs =
    10 * 60'000;  // a connection without a call; clients then connect again

void InitialiseGrpcOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

absl::StatusOr<HostAndPort> CheckListen(const std::string& flag, const std::string& listen,
                                        const std::string& tls_dir) {
  auto parsed = ParseListen(listen);
  if (!parsed.ok()) return Annotate(parsed.status(), flag);
  HostAndPort address = *std::move(parsed);
  if (IsLoopback(listen) || !tls_dir.empty()) return address;
  const bool any = address.host == "0.0.0.0" || address.host == "[::]";
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ", listen, " is not a loopback address, and without TLS anybody who reaches it can ",
      "run jobs. Make certificates with `milepost-coordinator init-pki DIR --host ",
      any ? "NAME" : address.host, "` and give --tls DIR/coordinator, ", "or listen on 127.0.0.1"));
}

absl::StatusOr<Listener> Listener::Make(const std::string& listen, const std::string& tls_dir) {
  Listener listener;
  const bool tls = !tls_dir.empty();
  listener.listen_ = listen;
  MP_ASSIGN_OR_RETURN(const HostAndPort address, CheckListen("--listen", listen, tls_dir));
  listener.host_ = address.host;
  listener.port_ = address.port;
  InitialiseGrpcOnce();
  const ConnectionLimits limits = LimitsFor(RaiseDescriptorLimit(), /*login=*/tls);
  listener.credentials_ = {grpc::InsecureServerCredentials()};
  if (tls) {
    MP_ASSIGN_OR_RETURN(listener.credentials_, CoordinatorCredentials(tls_dir, limits.slots));
  }
  listener.acceptor_ = std::make_unique<Acceptor>(limits);
  return listener;
}

void Listener::AddTo(grpc::ServerBuilder* builder,
                     const std::shared_ptr<grpc::AuthMetadataProcessor>& processor) {
  acceptor_->AddTo(builder, credentials_, processor);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxPingStrikes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
}

absl::StatusOr<std::string> Listener::Open(const grpc::Server* server) {
  absl::Status why = absl::UnavailableError("gRPC does not start");
  if (server != nullptr) {
    const absl::StatusOr<int> port = acceptor_->Listen(host_, port_);
    if (port.ok()) return absl::StrCat(host_, ":", *port);
    why = port.status();
  }
  return absl::UnavailableError(absl::StrCat(
      "cannot listen on ", listen_, " (", why.message(),
      "): the address is in use or not of this machine; stop the other process, or give another "
      "--listen"));
}

}  // namespace milepost::coordinator
