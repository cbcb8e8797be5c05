#include "coordinator/metrics/activity.h"

#include <algorithm>
#include <string>

#include "common/proto_time.h"
#include "coordinator/core/state.h"
#include "coordinator/metrics/names.h"

namespace milepost::coordinator {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets& FastBuckets() {
  static const Buckets buckets = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                  0.1,    0.25,  0.5,    1,     2.5,  10};
  return buckets;
}

const Buckets& CallBuckets() {
  static const Buckets buckets = {0.005, 0.025, 0.1, 0.5, 2.5, 10};
  return buckets;
}

const Buckets& WaitBuckets() {
  static const Buckets buckets = {1, 10, 60, 300, 1800, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600};
  return buckets;
}

// gRPC's name of it: a label that people search for.
std::string CodeLabel(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace

Activity::Counters& Activity::AddCounters(Metric metric) {
  const MetricInfo& info = InfoOf(metric);
  return prometheus::BuildCounter()
      .Name(std::string(info.name))
      .Help(std::string(info.help))
      .Register(registry_);
}

Activity::Histograms& Activity::AddHistograms(Metric metric) {
  const MetricInfo& info = InfoOf(metric);
  return prometheus::BuildHistogram()
      .Name(std::string(info.name))
      .Help(std::string(info.help))
      .Register(registry_);
}

Activity::Activity()
    : job_waits_(AddHistograms(Metric::kJobWaitSeconds)),
      submitted_(AddCounters(Metric::kJobsSubmitted)),
      ended_(AddCounters(Metric::kJobsEnded)),
      failed_(AddCounters(Metric::kAttemptsFailed)),
      preempted_(AddCounters(Metric::kPreemptions)),
      calls_(AddCounters(Metric::kCalls)),
      call_seconds_(AddHistograms(Metric::kCallSeconds)),
      started_(AddCounters(Metric::kAttemptsStarted).Add({})),
      write_failures_(AddCounters(Metric::kStoreWriteFailures).Add({})),
      decisions_(AddHistograms(Metric::kDecisionSeconds).Add({}, FastBuckets())),
      passes_(AddHistograms(Metric::kSchedulingSeconds).Add({}, FastBuckets())),
      writes_(AddHistograms(Metric::kStoreWriteSeconds).Add({}, FastBuckets())) {
  // From the first scrape on, so that a first failure is an increase.
  for (int i = v1::FAILURE_CLASS_USER; i <= v1::FailureClass_MAX; ++i) {
    failed_.Add({{"class", FailureLabel(static_cast<v1::FailureClass>(i))}});
  }
}

void Activity::JobChanged(const v1::JobRecord* before, const v1::JobRecord& after) {
  const v1::Job& job = after.job();
  const std::string queue = QueueLabel(job);
  if (before == nullptr) submitted_.Add({{"queue", queue}}).Increment();
  const v1::Job& was = before == nullptr ? v1::Job::default_instance() : before->job();
  if (job.attempts() > was.attempts()) {
    started_.Increment();
    if (was.attempts() == 0) {
      const absl::Duration wait = FromProto(job.start_time()) - FromProto(job.create_time());
      job_waits_.Add({{"queue", queue}}, WaitBuckets())
          .Observe(std::max(0.0, absl::ToDoubleSeconds(wait)));
    }
  }
  // The failure that ended an attempt is known when the attempt is over.
  if (job.failures() > was.failures()) {
    failed_.Add({{"class", FailureLabel(job.first_failure().class_())}}).Increment();
  }
  if (job.preemptions() > was.preemptions()) preempted_.Add({{"queue", queue}}).Increment();
  if (IsTerminal(job.state()) && !IsTerminal(was.state())) {
    ended_.Add({{"queue", queue}, {"state", StateLabel(job.state())}}).Increment();
  }
}

void Activity::Decided(absl::Duration took) { decisions_.Observe(absl::ToDoubleSeconds(took)); }

void Activity::Scheduled(absl::Duration took) { passes_.Observe(absl::ToDoubleSeconds(took)); }

void Activity::Wrote(absl::Duration took, bool stored) {
  writes_.Observe(absl::ToDoubleSeconds(took));
  if (!stored) write_failures_.Increment();
}

void Activity::Called(absl::string_view method, absl::StatusCode code, absl::Duration took) {
  const std::string name(method);
  calls_.Add({{"method", name}, {"code", CodeLabel(code)}}).Increment();
  call_seconds_.Add({{"method", name}}, CallBuckets()).Observe(absl::ToDoubleSeconds(took));
}

void Activity::Collect(Series* series) const { series->Add(registry_.Collect()); }

}  // namespace milepost::coordinator
