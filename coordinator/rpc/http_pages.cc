#include "coordinator/rpc/http_pages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/open_metrics.h"
#include "common/pki/certificate.h"
#include "common/regular_file.h"
#include "common/rpc/endpoint.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/metrics/series.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/files_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kKept = absl::Seconds(2);
constexpr size_t kMostCertificateBytes = 1 << 20;

HttpResponse Refused(const absl::Status& status) {
  const bool unknown = absl::IsUnauthenticated(status);
  return {.status = unknown                       ? 401
                    : absl::IsUnavailable(status) ? 503
                                                  : 403,
          .body = absl::StrCat(status.message(), "\n")};
}

void CollectCertificate(const std::string& tls_dir, Series* series) {
  const auto pem = ReadRegularFile(TlsFolder(tls_dir).certificate(), kMostCertificateBytes);
  if (!pem.ok()) return;
  const auto certificate = ReadCertificate(*pem);
  if (!certificate.ok()) return;
  series->Set(Metric::kCertificateEnd, {},
              static_cast<double>(absl::ToUnixSeconds(certificate->not_after)));
}

}  // namespace

HttpPages::HttpPages(Coordinator* coordinator, Gate* gate, HttpPagesOptions options)
    : coordinator_(coordinator), gate_(gate), options_(std::move(options)) {}

HttpResponse HttpPages::Answer(const HttpRequest& request) {
  if (request.path == "/metrics") return AnswerMetrics(request);
  if (request.path == "/healthz") return AnswerHealth();
  return {.status = 404, .body = "not found: there are /metrics and /healthz\n"};
}

HttpResponse HttpPages::AnswerHealth() const {
  if (const absl::Status may = coordinator_->MayAct(); !may.ok()) return Refused(may);
  return {.body = "ok\n"};
}

HttpResponse HttpPages::AnswerMetrics(const HttpRequest& request) {
  if (absl::Status status = gate_->CheckScrape(request.authorization); !status.ok()) {
    return Refused(status);
  }
  const bool open = WantsOpenMetrics(request.accept);
  absl::MutexLock lock(&mutex_);
  if (SteadyNow() >= made_ + kKept) {
    text_ = MakeText();
    open_text_.clear();
    made_ = SteadyNow();
  }
  if (!open) return {.content_type = kPrometheusTextType, .body = text_};
  if (open_text_.empty()) open_text_ = ToOpenMetrics(text_);
  return {.content_type = kOpenMetricsType, .body = open_text_};
}

std::string HttpPages::MakeText() const {
  Series series;
  series.Set(Metric::kBuildInfo, {kVersion}, 1);
  coordinator_->CollectMetrics(&series);
  Store& store = coordinator_->store();
  if (const auto free = store.CountFreeBytes(); free.ok()) {
    series.Set(Metric::kStoreFreeBytes, {}, static_cast<double>(*free));
  }
  series.Set(Metric::kStoreDamaged, {}, store.DescribeDamage().empty() ? 0 : 1);
  const CheckpointStore::Usage usage = store.checkpoints().CountBytes();
  series.Set(Metric::kStoreCheckpointBytes, {"kept"}, static_cast<double>(usage.kept));
  series.Set(Metric::kStoreCheckpointBytes, {"deleted"}, static_cast<double>(usage.deleted));
  series.Set(Metric::kFilesBytes, {}, static_cast<double>(store.files().CountBytes().bytes));
  if (!options_.tls_dir.empty()) CollectCertificate(options_.tls_dir, &series);
  return series.Text();
}

}  // namespace milepost::coordinator
