#include "coordinator/http/http_server.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <spdlog/spdlog.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

// Of a request's head; more gets 431.
constexpr size_t kMostHeadBytes = 32 << 10;
constexpr unsigned kThreads = 2;
constexpr char kPriorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3";

// What every answer says besides: nothing here is to be framed, guessed at or kept.
constexpr const char* kHeaders[][2] = {{"X-Content-Type-Options", "nosniff"},
                                       {"X-Frame-Options", "DENY"},
                                       {"Cache-Control", "no-store"},
                                       {"Referrer-Policy", "no-referrer"}};

// The library's own complaints are about clients.
void LogDebug(void*, const char* format, va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof text, format, arguments);
  spdlog::debug("http: {}", absl::StripSuffix(text, "\n").data());
}

MHD_Result Queue(MHD_Connection* connection, const HttpResponse& answer) {
  MHD_Response* response = MHD_create_response_from_buffer(
      answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.content_type.c_str());
  for (const auto& [name, value] : kHeaders) MHD_add_response_header(response, name, value);
  if (answer.status == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  if (answer.status == MHD_HTTP_UNAUTHORIZED) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
  }
  const MHD_Result queued = MHD_queue_response(connection, answer.status, response);
  MHD_destroy_response(response);
  return queued;
}

HttpResponse Answer(const HttpOptions& options, MHD_Connection* connection, const char* method,
                    const char* path) {
  const bool known = std::strcmp(method, MHD_HTTP_METHOD_GET) == 0 ||
                     std::strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
  if (!known) return {.status = MHD_HTTP_METHOD_NOT_ALLOWED, .body = "GET and HEAD alone\n"};
  const char* authorization =
      MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
  return options.handler(
      {.method = method, .path = path, .authorization = authorization ? authorization : ""});
}

// Called when a request's head is there; what follows it is never read.
MHD_Result OnRequest(void* options, MHD_Connection* connection, const char* path,
                     const char* method, const char*, const char*, size_t*, void**) {
  return Queue(connection,
               Answer(*static_cast<const HttpOptions*>(options), connection, method, path));
}

}  // namespace

// The library's server on one socket.
class HttpServer::Daemon {
 public:
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const HttpOptions& options, int socket,
                                                       const std::string& certificate,
                                                       const std::string& key);
  ~Daemon() {
    if (daemon_ == nullptr) return;
    // First: a daemon that is stopped with its socket shuts it down for all who listen on it.
    const UniqueFd listener(MHD_quiesce_daemon(daemon_));
    MHD_stop_daemon(daemon_);
  }

 private:
  MHD_Daemon* daemon_ = nullptr;
};

absl::StatusOr<std::unique_ptr<HttpServer::Daemon>> HttpServer::Daemon::Start(
    const HttpOptions& options, int socket, const std::string& certificate,
    const std::string& key) {
  UniqueFd listener(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  if (!listener.ok()) return absl::ErrnoToStatus(errno, "an HTTP socket");
  std::vector<MHD_OptionItem> tls;
  unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC | MHD_USE_ERROR_LOG;
  if (!certificate.empty()) {
    flags |= MHD_USE_TLS;
    tls.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, const_cast<char*>(certificate.c_str())});
    tls.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, const_cast<char*>(key.c_str())});
    tls.push_back({MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>(kPriorities)});
  }
  tls.push_back({MHD_OPTION_END, 0, nullptr});
  const unsigned silence =
      static_cast<unsigned>(absl::ToInt64Seconds(absl::Ceil(options.silence, absl::Seconds(1))));
  auto daemon = std::make_unique<Daemon>();
  daemon->daemon_ = MHD_start_daemon(
      flags, 0, nullptr, nullptr, OnRequest, const_cast<HttpOptions*>(&options),
      MHD_OPTION_EXTERNAL_LOGGER, LogDebug, nullptr, MHD_OPTION_LISTEN_SOCKET, listener.get(),
      MHD_OPTION_THREAD_POOL_SIZE, kThreads, MHD_OPTION_CONNECTION_LIMIT, options.connections,
      MHD_OPTION_PER_IP_CONNECTION_LIMIT, options.connections_of_address,
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

}  // namespace milepost::coordinator
