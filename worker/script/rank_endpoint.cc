#include "worker/script/rank_endpoint.h"

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
constexpr size_t kMostProgressBytes = 64 << 10;
constexpr size_t kMostBodyBytes = 16 << 20;  // a checkpoint's description has at most 4 MiB there
constexpr unsigned kConnections = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<RankEndpoint>> RankEndpoint::Start(const std::string& folder,
                                                                  Slow slow) {
  auto endpoint = absl::WrapUnique(new RankEndpoint(std::move(slow)));
  endpoint->token_ = RandomHex(kTokenBytes);
  endpoint->token_file_ = absl::StrCat(folder, "/token");
  std::ofstream file(endpoint->token_file_);
  file << endpoint->token_;
  file.close();
  if (!file) return absl::UnavailableError("cannot write " + endpoint->token_file_);
  int port = 0;
  MP_ASSIGN_OR_RETURN(auto sockets, ListenOn("127.0.0.1", &port));
  endpoint->url_ = absl::StrCat("http://127.0.0.1:", port);
  HttpOptions options;
  options.sockets = std::move(sockets);
  options.most_body_bytes = kMostBodyBytes;
  options.connections = kConnections;
  options.connections_of_address = kConnections;
  options.handler = [raw = endpoint.get()](HttpRequest request, const HttpAnswer& answer) {
    raw->Take(std::move(request), answer);
  };
  endpoint->thread_ = std::thread(&RankEndpoint::AnswerSlowly, endpoint.get());
  MP_ASSIGN_OR_RETURN(endpoint->server_, HttpServer::Start(std::move(options)));
  return endpoint;
}

RankEndpoint::~RankEndpoint() {
  server_.reset();
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void RankEndpoint::Take(HttpRequest request, const HttpAnswer& answer) {
  if (request.method != "POST") return answer({.status = 405, .body = "POST it\n"});
  if (!SameSecret(request.authorization, absl::StrCat("Bearer ", token_))) {
    return answer({.status = 401, .body = "Authorization: Bearer and the token are missing\n"});
  }
  if (request.path == "/progress") return answer(TakeProgress(request.body));
  const absl::MutexLock lock(&mutex_);
  if (waiting_.size() >= kConnections) {
    return answer({.status = 503, .body = "too many requests\n"});
  }
  waiting_.push_back({std::move(request), answer});
}

HttpResponse RankEndpoint::TakeProgress(const std::string& body) {
  if (body.size() > kMostProgressBytes) return {.status = 413, .body = "at most 64 KiB\n"};
  const absl::MutexLock lock(&mutex_);
  if (const absl::Status taken = progress_.Take(body, absl::Now()); !taken.ok()) {
    return {.status = 400, .body = absl::StrCat(taken.message(), "\n")};
  }
  news_ = true;
  return {};
}

void RankEndpoint::AnswerSlowly() {
  while (true) {
    std::optional<Waiting> next;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &RankEndpoint::HasWaiting));
      if (ending_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next->answer(slow_(next->request.path, next->request.body));
  }
}

std::optional<v1::Progress> RankEndpoint::TakeNews() {
  const absl::MutexLock lock(&mutex_);
  if (!std::exchange(news_, false)) return std::nullopt;
  return progress_.progress();
}

}  // namespace milepost::worker
