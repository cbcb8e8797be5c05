// What is known against a host: its failures, for placement to avoid it; after several of them it
// is given no ranks until a health check finds nothing wrong.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "common/utf8.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

namespace {

constexpr int kMostHostFailures = 8;
// What takes several ranks of a host within this time is one failure.
constexpr absl::Duration kOneFailure = absl::Seconds(10);
// For an answer; then it is asked for again.
constexpr absl::Duration kCheckPatience = absl::Minutes(1);
constexpr size_t kMaxProblemBytes = 1024;

// `before`: how often there was cause to wait already.
absl::Duration CheckDelay(absl::Duration backoff, int before) {
  if (before <= 0) return absl::ZeroDuration();
  return std::min(backoff * std::pow(2.0, std::min(before - 1, 30)), kLongestCheckBackoff);
}

int FailuresSince(const v1::WorkerRecord& record, absl::Time since) {
  return static_cast<int>(std::count_if(
      record.failures().begin(), record.failures().end(),
      [&](const v1::HostFailure& failure) { return FromProto(failure.time()) > since; }));
}

}  // namespace

void Transition::NoteHostFailure(const std::string& name, v1::FailureClass failure_class,
                                 const std::string& job) {
  const bool of_host =
      failure_class == v1::FAILURE_CLASS_HOST || failure_class == v1::FAILURE_CLASS_DEVICE;
  if (!of_host || Worker(name) == nullptr) return;
  const auto& known = Worker(name)->failures();
  if (!known.empty() && now_ - FromProto(known.rbegin()->time()) < kOneFailure) return;
  v1::WorkerRecord& record = ChangeWorker(name);
  v1::HostFailure* failure = record.add_failures();
  *failure->mutable_time() = ToProto(now_);
  failure->set_class_(failure_class);
  failure->set_job(job);
  if (record.failures_size() > kMostHostFailures) {
    record.mutable_failures()->DeleteSubrange(0, record.failures_size() - kMostHostFailures);
  }
  Exclude(name);
}

// Where it has failed often enough.
void Transition::Exclude(const std::string& name) {
  const v1::WorkerRecord& known = *Worker(name);
  const int failures = FailuresSince(known, now_ - config_.avoid_after_failure);
  const bool often = config_.exclude_after > 0 && failures >= config_.exclude_after;
  if (!often || known.worker().has_exclusion()) return;
  const absl::Duration delay = CheckDelay(config_.check_backoff, failures - config_.exclude_after);
  v1::Exclusion* exclusion = ChangeWorker(name).mutable_worker()->mutable_exclusion();
  *exclusion->mutable_time() = ToProto(now_);
  exclusion->set_reason(absl::StrCat(failures, " device or host failures within ",
                                     absl::FormatDuration(config_.avoid_after_failure),
                                     ", the last one of ",
                                     known.failures(known.failures_size() - 1).job()));
  *exclusion->mutable_next_check_time() = ToProto(now_ + delay);
}

void Transition::CheckHosts() {
  for (const auto& [name, record] : state_.workers()) {
    const v1::WorkerRecord* known = Worker(name);
    if (known == nullptr || NextHealthCheck(known->worker()) > now_) continue;
    v1::Exclusion* exclusion = ChangeWorkerSoft(name).mutable_worker()->mutable_exclusion();
    *exclusion->mutable_next_check_time() = ToProto(now_ + kCheckPatience);
    Action action{.worker = name};
    *action.message.mutable_check_health()->mutable_exclusion_time() = exclusion->time();
    outcome_.actions.push_back(std::move(action));
  }
}

bool Transition::NoteHealth(const std::string& name, const v1::HealthReport& report) {
  const v1::WorkerRecord* known = Worker(name);
  if (known == nullptr || !known->worker().has_exclusion()) return false;
  if (FromProto(known->worker().exclusion().time()) != FromProto(report.exclusion_time())) {
    return false;  // of an earlier one
  }
  v1::Worker* worker = ChangeWorker(name).mutable_worker();
  if (report.problem().empty()) {
    worker->clear_exclusion();
    return true;
  }
  v1::Exclusion* exclusion = worker->mutable_exclusion();
  exclusion->set_failed_checks(exclusion->failed_checks() + 1);
  exclusion->set_problem(CutUtf8(report.problem(), kMaxProblemBytes));
  *exclusion->mutable_next_check_time() =
      ToProto(now_ + CheckDelay(config_.check_backoff, exclusion->failed_checks()));
  return true;  // what waits says what was found
}

}  // namespace milepost::coordinator
