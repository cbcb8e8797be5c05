#include "worker/script/progress_endpoint.h"

#include <fstream>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/http/listen.h"
#include "common/pki/secret.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

constexpr size_t kTokenBytes = 16;
constexpr size_t kMostBodyBytes = 64 << 10;
constexpr unsigned kConnections = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<ProgressEndpoint>> ProgressEndpoint::Start(
    const std::string& folder) {
  auto endpoint = absl::WrapUnique(new ProgressEndpoint());
  endpoint->token_ = RandomHex(kTokenBytes);
  endpoint->token_file_ = absl::StrCat(folder, "/progress_token");
  std::ofstream file(endpoint->token_file_);
  file << endpoint->token_;
  file.close();
  if (!file) return absl::UnavailableError("cannot write " + endpoint->token_file_);
  int port = 0;
  MP_ASSIGN_OR_RETURN(auto sockets, ListenOn("127.0.0.1", &port));
  endpoint->url_ = absl::StrCat("http://127.0.0.1:", port, "/progress");
  HttpOptions options;
  options.sockets = std::move(sockets);
  options.most_body_bytes = kMostBodyBytes;
  options.connections = kConnections;
  options.connections_of_address = kConnections;
  options.handler = [raw = endpoint.get()](const HttpRequest& request, const HttpAnswer& answer) {
    answer(raw->Answer(request));
  };
  MP_ASSIGN_OR_RETURN(endpoint->server_, HttpServer::Start(std::move(options)));
  return endpoint;
}

HttpResponse ProgressEndpoint::Answer(const HttpRequest& request) {
  if (request.path != "/progress") return {.status = 404, .body = "POST to /progress\n"};
  if (request.method != "POST") return {.status = 405, .body = "POST it\n"};
  if (!SameSecret(request.authorization, absl::StrCat("Bearer ", token_))) {
    return {.status = 401, .body = "Authorization: Bearer and the token are missing\n"};
  }
  const absl::MutexLock lock(&mutex_);
  if (const absl::Status taken = progress_.Take(request.body, absl::Now()); !taken.ok()) {
    return {.status = 400, .body = absl::StrCat(taken.message(), "\n")};
  }
  news_ = true;
  return {};
}

std::optional<v1::Progress> ProgressEndpoint::TakeNews() {
  const absl::MutexLock lock(&mutex_);
  if (!std::exchange(news_, false)) return std::nullopt;
  return progress_.progress();
}

}  // namespace milepost::worker
