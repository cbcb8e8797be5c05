#include "worker/metrics/worker_pages.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/http/listen.h"
#include "common/open_metrics.h"
#include "common/pki/certificate.h"
#include "common/pki/secret.h"
#include "common/regular_file.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "worker/metrics/worker_series.h"

namespace milepost::worker {
namespace {

constexpr size_t kMostFileBytes = 1 << 20;
constexpr size_t kLeastTokenBytes = 16;

absl::StatusOr<std::string> DigestOfTokenIn(const std::string& path) {
  auto text = ReadRegularFile(path, kMostFileBytes);
  if (!text.ok()) return Annotate(text.status(), "--http-token-file");
  const absl::string_view token = absl::StripAsciiWhitespace(*text);
  if (token.size() >= kLeastTokenBytes) return Sha256(token);
  return absl::InvalidArgumentError(absl::StrCat("--http-token-file: ", path, " has fewer than ",
                                                 kLeastTokenBytes, " characters"));
}

absl::Status CheckReach(const WorkerPagesOptions& options) {
  if (IsLoopback(options.listen)) return absl::OkStatus();
  if (!options.tls_dir.empty() && !options.token_file.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--http: ", options.listen,
                   " is not a loopback address: give --http-tls, a folder with a server's "
                   "certificate, and --http-token-file, or listen on 127.0.0.1"));
}

std::optional<absl::Time> EndOfCertificate(const std::string& tls_dir) {
  if (tls_dir.empty()) return std::nullopt;
  const auto pem = ReadRegularFile(TlsFolder(tls_dir).certificate(), kMostFileBytes);
  if (!pem.ok()) return std::nullopt;
  const auto certificate = ReadCertificate(*pem);
  if (!certificate.ok()) return std::nullopt;
  return certificate->not_after;
}

}  // namespace

WorkerPages::WorkerPages(WorkerPagesOptions options)
    : options_(std::move(options)), start_(absl::Now()) {}

absl::StatusOr<std::unique_ptr<WorkerPages>> WorkerPages::Start(WorkerPagesOptions options) {
  MP_RETURN_IF_ERROR(Annotate(CheckListenAddress(options.listen), "--http"));
  MP_RETURN_IF_ERROR(CheckReach(options));
  std::unique_ptr<WorkerPages> pages(new WorkerPages(std::move(options)));
  MP_RETURN_IF_ERROR(pages->Listen());
  return pages;
}

absl::Status WorkerPages::Listen() {
  if (!options_.token_file.empty()) {
    MP_ASSIGN_OR_RETURN(token_sha256_, DigestOfTokenIn(options_.token_file));
  }
  MP_ASSIGN_OR_RETURN(HostAndPort address, ParseListen(options_.listen));
  HttpOptions http{.tls_dir = options_.tls_dir};
  auto sockets = ListenOn(address.host, &address.port);
  if (!sockets.ok()) {
    return absl::UnavailableError(absl::StrCat("--http: cannot listen on ", options_.listen, ": ",
                                               sockets.status().message()));
  }
  http.sockets = *std::move(sockets);
  http.handler = [this](const HttpRequest& request, const HttpAnswer& answer) {
    answer(Answer(request));
  };
  address_ = absl::StrCat(address.host, ":", address.port);
  MP_ASSIGN_OR_RETURN(server_, HttpServer::Start(std::move(http)));
  return absl::OkStatus();
}

HttpResponse WorkerPages::Answer(const HttpRequest& request) const {
  if (request.path == "/metrics") return AnswerMetrics(request);
  const bool ready = request.path == "/readyz";
  if (!ready && request.path != "/healthz") {
    return {.status = 404, .body = "not found: there are /metrics, /healthz and /readyz\n"};
  }
  const AgentStanding standing = options_.standing();
  if (SteadyNow() - standing.last_turn > kStandsStill) {
    return {.status = 503, .body = "the worker stands still\n"};
  }
  if (ready && !standing.registered) {
    return {.status = 503, .body = "no coordinator has taken the worker in\n"};
  }
  return {.body = "ok\n"};
}

HttpResponse WorkerPages::AnswerMetrics(const HttpRequest& request) const {
  absl::string_view shown = request.authorization;
  const bool may = token_sha256_.empty() || (absl::ConsumePrefix(&shown, "Bearer ") &&
                                             SameSecret(Sha256(shown), token_sha256_));
  if (!may) {
    return {.status = 401, .body = "metrics are for a token: authorization: Bearer TOKEN\n"};
  }
  const std::string text =
      WorkerMetricsText({.standing = options_.standing(),
                         .start = start_,
                         .certificate_end = EndOfCertificate(options_.worker_tls_dir)});
  if (!WantsOpenMetrics(request.accept)) {
    return {.content_type = kPrometheusTextType, .body = text};
  }
  return {.content_type = kOpenMetricsType, .body = ToOpenMetrics(text)};
}

}  // namespace milepost::worker
