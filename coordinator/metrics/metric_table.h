// Every metric that a coordinator exports. The series and docs/operate/metrics.md follow this one
// list. Pure and thread-safe.
//
//   const MetricInfo& info = InfoOf(Metric::kJobStep);   // milepost_job_step, gauge, {"job_id"}
//
// Names and units follow https://prometheus.io/docs/practices/naming. A training job has the label
// `job_id`, because Prometheus has its own label `job`.
#ifndef MILEPOST_COORDINATOR_METRICS_METRIC_TABLE_H_
#define MILEPOST_COORDINATOR_METRICS_METRIC_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace milepost::coordinator {

enum class Metric : uint8_t {
  // The coordinator.
  kBuildInfo,
  kStartTime,
  kDecisionSeconds,
  kSchedulingSeconds,
  kStoreWriteSeconds,
  kStoreWriteFailures,
  kStoreDamaged,
  kStoreFreeBytes,
  kStoreCheckpointBytes,
  kJobRecordBytes,
  kFilesBytes,
  kCalls,
  kCallSeconds,
  kCertificateEnd,
  kSeriesLeftOut,
  // The cluster.
  kJobs,
  kJobsWaiting,
  kOldestWait,
  kJobsSubmitted,
  kJobsEnded,
  kJobWaitSeconds,
  kAttemptsStarted,
  kAttemptsFailed,
  kPreemptions,
  kQueueSlotsHeld,
  kQueueSlotsLimit,
  kSlotsUsable,
  kSlotsFree,
  kSlotsHeld,
  kSlotsWanted,
  kSlotsMissing,
  kWorkers,
  kWorkerInfo,
  kWorkerConnected,
  // Each job that has ranks.
  kJobInfo,
  kJobRanks,
  kJobStep,
  kJobSteps,
  kJobTrainLoss,
  kJobValidationLoss,
  kJobLearningRate,
  kJobGradientNorm,
  kJobSkippedSteps,
  kJobLossScale,
  kJobTokensPerSecond,
  kJobMfu,
  kJobStepSeconds,
  kJobStepPartSeconds,
  kJobMemoryBytes,
  kJobLastReport,
  kJobCheckpointStep,
  kJobCheckpointEvery,
  kJobCheckpointHoldSeconds,
  kJobCheckpointFails,
  kJobGoodput,
  kJobFailures,
  kJobAttempts,
  kJobStragglers,
  kJobDamagedSamples,
  // Each GPU.
  kGpuInfo,
  kGpuUsable,
  kGpuUtilization,
  kGpuMemoryUsed,
  kGpuMemory,
  kGpuPower,
  kGpuTemperature,
  kGpuClock,
  kGpuThrottled,
  kGpuEccErrors,
  kGpuXid,
  kCount,
};

enum class MetricKind : uint8_t { kGauge, kCounter, kHistogram };

struct MetricInfo {
  Metric metric;
  absl::string_view name;
  MetricKind kind;
  absl::string_view labels;  // "queue,state"; empty: none
  absl::string_view help;
};

// In the order of the enum.
absl::Span<const MetricInfo> AllMetrics();
const MetricInfo& InfoOf(Metric metric);
std::vector<std::string> LabelsOf(const MetricInfo& info);

// The table in docs/operate/metrics.md, as Markdown.
std::string MetricsAsMarkdown();

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_METRICS_METRIC_TABLE_H_
