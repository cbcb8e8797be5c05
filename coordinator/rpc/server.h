// A whole coordinator: store, decisions, services, listening socket.
//
//   MP_ASSIGN_OR_RETURN(auto server, CoordinatorServer::Start({.data_dir = dir}));
//   ... server->address() ...
//   server->Stop();
//
// Several may live in one process, each on its own directory. Thread-safe.
#ifndef MILEPOST_COORDINATOR_RPC_SERVER_H_
#define MILEPOST_COORDINATOR_RPC_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/security/rate_limiter.h"
#include "coordinator/security/service_accounts.h"
#include "coordinator/store/store.h"
#include "coordinator/webhooks/webhook_file.h"

namespace milepost {
class HttpServer;
}

namespace milepost::coordinator {

struct ServerOptions {
  StoreOptions store;
  CoordinatorOptions coordinator;
  std::string listen = "127.0.0.1:0";  // host:port; port 0: any free one
  // The coordinator's certificate, its key, the authority's (common/rpc/endpoint.h), and the digest
  // of the first admin token. Empty: plain text, every caller may do everything; loopback only.
  std::string tls_dir;
  // ca.crt and ca.key of the authority that signs the certificates of workers which join with a
  // token. Empty: none is signed. Needs tls_dir.
  std::string worker_authority;
  absl::Duration worker_certificate_life = absl::Hours(24 * 7);
  // The cluster whose service accounts' tokens stand for join tokens. Without `keys` none do. Needs
  // worker_authority.
  ServiceAccountOptions service_accounts;
  Limits limits;  // of each caller; not on loopback without TLS
  // Where calls that change something and refusals are written; empty: with TLS audit.log in the
  // store's folder, else nowhere.
  std::string audit_path;
  // Called when all is ready, right before the address is taken. May be empty.
  std::function<void()> before_listening;
  // Who is told of jobs that have ended.
  std::vector<Webhook> webhooks;
  // host:port of the pages for monitoring (http_pages.h), with the same certificate; port 0: any
  // free one. Empty: none. Without TLS loopback only.
  std::string http;
};

// For a process that is a coordinator, before its first thread: keeps freed memory of the size of
// checkpoint chunks in the process, which glibc gives back and faults in again with every chunk
// otherwise; looks for no deadlocks, which Debian's abseil does at every lock; and takes as many
// descriptors as it may have.
void TuneProcess();

class AuditLog;
class Gate;
class HttpPages;
class JoinTable;
class TemplateTable;
class TokenTable;
class WorkerAuthority;

class CoordinatorServer {
 public:
  // Serving when it returns. UNAVAILABLE: the address cannot be listened on (in use);
  // INVALID_ARGUMENT: it is not an address, or not loopback without TLS; and the errors of
  // Store::Open and CoordinatorCredentials.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const ServerOptions& options);
  ~CoordinatorServer();  // stops

  // host:port with the port that was bound.
  const std::string& address() const { return address_; }
  // Of the pages; empty: there are none.
  const std::string& http_address() const { return http_address_; }
  Coordinator& coordinator() { return *coordinator_; }

  // Ends all calls within half a second, and connections that do not take their answers after
  // another. Idempotent.
  void Stop();

 private:
  struct Rpc;
  class StoredJoins;
  class WebhookListener;
  CoordinatorServer();

  absl::Status OpenGate(const ServerOptions& options);
  absl::Status OpenJoins(const ServerOptions& options);
  absl::Status OpenHttp(const ServerOptions& options);

  std::unique_ptr<Store> store_;
  std::unique_ptr<WebhookListener> webhooks_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<TokenTable> tokens_;
  std::unique_ptr<StoredJoins> stored_joins_;
  std::unique_ptr<JoinTable> joins_;
  std::unique_ptr<ServiceAccounts> accounts_;
  std::unique_ptr<WorkerAuthority> authority_;
  std::unique_ptr<TemplateTable> templates_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<Rpc> rpc_;
  std::unique_ptr<HttpPages> pages_;
  std::unique_ptr<HttpServer> http_;
  std::string address_;
  std::string http_address_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_SERVER_H_
