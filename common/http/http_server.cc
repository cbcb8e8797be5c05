#include "common/http/http_server.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <spdlog/spdlog.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/http/http_exchange.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

// Of a request's head; more gets 431.
constexpr size_t kMostHeadBytes = 32 << 10;
constexpr unsigned kThreads = 2;
constexpr char kPriorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3";

// The library's own complaints are about clients.
void LogDebug(void*, const char* format, va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof text, format, arguments);
  spdlog::debug("http: {}", absl::StripSuffix(text, "\n").data());
}

}  // namespace

// The library's server on one socket.
class HttpServer::Daemon {
 public:
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const HttpOptions& options, int socket,
                                                       const std::string& certificate,
                                                       const std::string& key);
  explicit Daemon(const HttpOptions& options) : options_(options) {}
  ~Daemon();

 private:
  static MHD_Result OnRequest(void* daemon, MHD_Connection* connection, const char* path,
                              const char* method, const char* version, const char* data,
                              size_t* size, void** exchange);
  static void OnCompleted(void* daemon, MHD_Connection* connection, void** exchange,
                          MHD_RequestTerminationCode code);
  HttpExchange* Begin(MHD_Connection* connection);

  const HttpOptions& options_;
  MHD_Daemon* daemon_ = nullptr;
  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<HttpExchange*, std::shared_ptr<HttpExchange>> open_ ABSL_GUARDED_BY(mutex_);
};

HttpServer::Daemon::~Daemon() {
  if (daemon_ == nullptr) return;
  // First: a daemon that is stopped with its socket shuts it down for all who listen on it.
  const UniqueFd listener(MHD_quiesce_daemon(daemon_));
  std::vector<std::shared_ptr<HttpExchange>> open;
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    for (const auto& [raw, exchange] : open_) open.push_back(exchange);
  }
  // The library must not be stopped while anything of it is suspended.
  for (const auto& exchange : open) exchange->Abandon();
  MHD_stop_daemon(daemon_);
}

HttpExchange* HttpServer::Daemon::Begin(MHD_Connection* connection) {
  auto exchange = std::make_shared<HttpExchange>(options_, connection);
  HttpExchange* raw = exchange.get();
  bool ending = false;
  {
    absl::MutexLock lock(&mutex_);
    ending = ending_;
    open_[raw] = std::move(exchange);
  }
  if (ending) raw->Abandon();
  return raw;
}

MHD_Result HttpServer::Daemon::OnRequest(void* daemon, MHD_Connection* connection, const char* path,
                                         const char* method, const char*, const char* data,
                                         size_t* size, void** exchange) {
  auto* its = static_cast<HttpExchange*>(*exchange);
  if (its == nullptr) {
    its = static_cast<Daemon*>(daemon)->Begin(connection);
    *exchange = its;
    return its->Head(method);
  }
  if (*size == 0) return its->End(method, path);
  const size_t count = *size;
  *size = 0;
  return its->Body(data, count);
}

void HttpServer::Daemon::OnCompleted(void* daemon, MHD_Connection*, void** exchange,
                                     MHD_RequestTerminationCode) {
  if (*exchange == nullptr) return;
  auto* self = static_cast<Daemon*>(daemon);
  std::shared_ptr<HttpExchange> last;
  {
    absl::MutexLock lock(&self->mutex_);
    auto found = self->open_.extract(static_cast<HttpExchange*>(*exchange));
    if (found) last = std::move(found.mapped());
  }
  *exchange = nullptr;
}

absl::StatusOr<std::unique_ptr<HttpServer::Daemon>> HttpServer::Daemon::Start(
    const HttpOptions& options, int socket, const std::string& certificate,
    const std::string& key) {
  UniqueFd listener(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  if (!listener.ok()) return absl::ErrnoToStatus(errno, "an HTTP socket");
  std::vector<MHD_OptionItem> tls;
  // Not epoll: there MHD_quiesce_daemon races with the pool's threads for who takes the socket out
  // of their sets, and the loser aborts the process (0.9.75).
  unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
  if (!certificate.empty()) {
    flags |= MHD_USE_TLS;
    tls.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, const_cast<char*>(certificate.c_str())});
    tls.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, const_cast<char*>(key.c_str())});
    tls.push_back({MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>(kPriorities)});
  }
  tls.push_back({MHD_OPTION_END, 0, nullptr});
  const unsigned silence =
      static_cast<unsigned>(absl::ToInt64Seconds(absl::Ceil(options.silence, absl::Seconds(1))));
  auto daemon = std::make_unique<Daemon>(options);
  daemon->daemon_ = MHD_start_daemon(
      flags, 0, nullptr, nullptr, OnRequest, daemon.get(), MHD_OPTION_NOTIFY_COMPLETED, OnCompleted,
      daemon.get(), MHD_OPTION_EXTERNAL_LOGGER, LogDebug, nullptr, MHD_OPTION_LISTEN_SOCKET,
      listener.get(), MHD_OPTION_THREAD_POOL_SIZE, kThreads, MHD_OPTION_CONNECTION_LIMIT,
      options.connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT, options.connections_of_address,
      MHD_OPTION_CONNECTION_TIMEOUT, silence, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kMostHeadBytes,
      MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_ARRAY, tls.data(), MHD_OPTION_END);
  if (daemon->daemon_ == nullptr) {
    return absl::InternalError("libmicrohttpd does not start (--log-level debug says more)");
  }
  listener.Release();
  return daemon;
}

HttpServer::HttpServer(HttpOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(options)));
  TlsFiles files;
  const std::string& tls_dir = server->options_.tls_dir;
  if (!tls_dir.empty()) {
    MP_ASSIGN_OR_RETURN(files, ReadTlsFolder(TlsFolder(tls_dir)));
  }
  MP_RETURN_IF_ERROR(server->StartDaemons(files.certificate, files.key));
  if (!tls_dir.empty()) server->watch_ = std::thread([raw = server.get()] { raw->WatchFiles(); });
  return server;
}

HttpServer::~HttpServer() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (watch_.joinable()) watch_.join();
}

// The old ones end, with their connections, when new ones answer.
absl::Status HttpServer::StartDaemons(const std::string& certificate, const std::string& key) {
  std::vector<std::unique_ptr<Daemon>> daemons;
  for (const UniqueFd& socket : options_.sockets) {
    MP_ASSIGN_OR_RETURN(auto daemon, Daemon::Start(options_, socket.get(), certificate, key));
    daemons.push_back(std::move(daemon));
  }
  daemons_.swap(daemons);
  certificate_ = certificate;
  return absl::OkStatus();
}

void HttpServer::WatchFiles() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), options_.look_at_tls_files)) return;
    }
    // Bad ones are told of by who watches them for gRPC (common/rpc/tls_watch.h).
    const auto files = ReadTlsFolder(TlsFolder(options_.tls_dir));
    if (!files.ok() || files->certificate == certificate_) continue;
    const absl::Status status = StartDaemons(files->certificate, files->key);
    if (!status.ok()) {
      spdlog::error("http: the new certificate is not used: {}", std::string(status.message()));
    }
  }
}

}  // namespace milepost
