#include "coordinator/metrics/metric_table.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace milepost::coordinator {
namespace {

using enum MetricKind;

constexpr std::array kTable = {
    MetricInfo{Metric::kBuildInfo, "milepost_build_info", kGauge, "version", "Always 1."},
    MetricInfo{Metric::kStartTime, "milepost_coordinator_start_time_seconds", kGauge, "",
               "When this coordinator began to serve, in Unix time."},
    MetricInfo{Metric::kDecisionSeconds, "milepost_decision_duration_seconds", kHistogram, "",
               "Time of deciding on a batch of events and storing the decision."},
    MetricInfo{Metric::kSchedulingSeconds, "milepost_scheduling_duration_seconds", kHistogram, "",
               "Time of a scheduling pass, with storing it."},
    MetricInfo{Metric::kStoreWriteSeconds, "milepost_store_write_duration_seconds", kHistogram, "",
               "Time of a synced write of decisions."},
    MetricInfo{Metric::kStoreWriteFailures, "milepost_store_write_failures_total", kCounter, "",
               "Decisions that could not be stored, and so did not happen."},
    MetricInfo{Metric::kStoreDamaged, "milepost_store_damaged", kGauge, "",
               "1: damaged records or logs were met since the start; 0: none."},
    MetricInfo{Metric::kStoreFreeBytes, "milepost_store_free_bytes", kGauge, "",
               "Bytes left on the file system of the data directory."},
    MetricInfo{Metric::kStoreCheckpointBytes, "milepost_store_checkpoint_bytes", kGauge, "state",
               "Tensor data of committed checkpoints; state is kept or deleted (in the bin)."},
    MetricInfo{Metric::kJobRecordBytes, "milepost_store_job_record_bytes", kGauge, "",
               "Records of all jobs, which --max-job-bytes bounds."},
    MetricInfo{Metric::kFilesBytes, "milepost_store_files_bytes", kGauge, "",
               "Files that were sent along with scripts, which --max-files-bytes bounds."},
    MetricInfo{Metric::kCalls, "milepost_rpc_calls_total", kCounter, "method,code",
               "Calls that users, workers and ranks made; code is gRPC's."},
    MetricInfo{Metric::kCallSeconds, "milepost_rpc_duration_seconds", kHistogram, "method",
               "How long calls took; those that watch or follow take as long as they like."},
    MetricInfo{Metric::kCertificateEnd, "milepost_tls_certificate_end_timestamp_seconds", kGauge,
               "", "When the coordinator's certificate ends, in Unix time; none without TLS."},
    MetricInfo{
        Metric::kSeriesLeftOut, "milepost_series_left_out", kGauge, "of",
        "Jobs, workers, GPUs and pools that have no series of their own, as there are too many."},

    MetricInfo{Metric::kJobs, "milepost_jobs", kGauge, "queue,state", "Jobs by state."},
    MetricInfo{Metric::kJobsWaiting, "milepost_jobs_waiting", kGauge, "device,reason",
               "Jobs that wait to start, by what they wait for."},
    MetricInfo{Metric::kOldestWait, "milepost_queue_oldest_wait_seconds", kGauge, "queue",
               "For how long the job that came first has been in the queue's line."},
    MetricInfo{Metric::kJobsSubmitted, "milepost_jobs_submitted_total", kCounter, "queue",
               "Jobs that were accepted."},
    MetricInfo{Metric::kJobsEnded, "milepost_jobs_ended_total", kCounter, "queue,state",
               "Jobs that ended: SUCCEEDED, FAILED or CANCELLED."},
    MetricInfo{Metric::kJobWaitSeconds, "milepost_job_wait_seconds", kHistogram, "queue",
               "From a job's submission to its first start."},
    MetricInfo{Metric::kAttemptsStarted, "milepost_attempts_started_total", kCounter, "",
               "Attempts of jobs that were given slots."},
    MetricInfo{Metric::kAttemptsFailed, "milepost_attempts_failed_total", kCounter, "class",
               "Attempts that failed, by the class of the first failure."},
    MetricInfo{Metric::kPreemptions, "milepost_preemptions_total", kCounter, "queue",
               "How often jobs made room for others; queue is theirs."},
    MetricInfo{Metric::kQueueSlotsHeld, "milepost_queue_slots_held", kGauge, "queue,device",
               "Slots that the queue's jobs hold, or are about to."},
    MetricInfo{Metric::kQueueSlotsLimit, "milepost_queue_slots_limit", kGauge, "queue,device",
               "Slots that the queue never exceeds; none where it has no limit."},
    MetricInfo{Metric::kSlotsUsable, "milepost_slots_usable", kGauge, "device,device_model,pool",
               "Slots of workers that are ready, free or not."},
    MetricInfo{Metric::kSlotsFree, "milepost_slots_free", kGauge, "device,device_model,pool",
               "Of these, slots that nobody holds."},
    MetricInfo{Metric::kSlotsHeld, "milepost_slots_held", kGauge, "device,device_model,pool",
               "Of these, slots that somebody holds."},
    MetricInfo{Metric::kSlotsWanted, "milepost_slots_wanted", kGauge, "device,device_model,pool",
               "Slots that the waiting jobs would start on, whole gangs only, within their queues' "
               "limits. With milepost_slots_held: how many there should be. device_model and "
               "pool are what the jobs ask for, empty where any will do."},
    MetricInfo{Metric::kSlotsMissing, "milepost_slots_missing", kGauge, "device",
               "Slots that are out of order, or that a worker does not offer for a fault."},
    MetricInfo{Metric::kWorkers, "milepost_workers", kGauge, "state", "Workers by state."},
    MetricInfo{Metric::kWorkerInfo, "milepost_worker_info", kGauge, "worker,host,version,driver",
               "Always 1."},
    MetricInfo{Metric::kWorkerConnected, "milepost_worker_connected", kGauge, "worker",
               "1: the worker has a connection; 0: it has not."},

    MetricInfo{Metric::kJobInfo, "milepost_job_info", kGauge, "job_id,name,project,queue,device",
               "Always 1, of each job that has ranks: join it to name the others."},
    MetricInfo{Metric::kJobRanks, "milepost_job_ranks", kGauge, "job_id",
               "Ranks of the attempt that runs."},
    MetricInfo{Metric::kJobStep, "milepost_job_step", kGauge, "job_id", "Optimizer steps done."},
    MetricInfo{Metric::kJobSteps, "milepost_job_steps", kGauge, "job_id",
               "Optimizer steps that the job is to do."},
    MetricInfo{Metric::kJobTrainLoss, "milepost_job_train_loss", kGauge, "job_id",
               "Training loss of the last step, nats per target."},
    MetricInfo{Metric::kJobValidationLoss, "milepost_job_validation_loss", kGauge, "job_id",
               "The newest validation loss; none before the first."},
    MetricInfo{Metric::kJobLearningRate, "milepost_job_learning_rate", kGauge, "job_id",
               "Learning rate of the last step."},
    MetricInfo{Metric::kJobGradientNorm, "milepost_job_gradient_norm", kGauge, "job_id",
               "Norm of the last step's gradient, before clipping."},
    MetricInfo{Metric::kJobSkippedSteps, "milepost_job_skipped_steps", kGauge, "job_id",
               "Steps without an update, as their gradient was no number."},
    MetricInfo{Metric::kJobLossScale, "milepost_job_loss_scale", kGauge, "job_id",
               "Loss scale of the last step; none but in fp16."},
    MetricInfo{Metric::kJobTokensPerSecond, "milepost_job_tokens_per_second", kGauge, "job_id",
               "Over all ranks; images per second where the data are images."},
    MetricInfo{Metric::kJobMfu, "milepost_job_mfu_ratio", kGauge, "job_id",
               "Share of the device's rate of products that the model's FLOPs reach."},
    MetricInfo{Metric::kJobStepSeconds, "milepost_job_step_seconds", kGauge, "job_id",
               "Wall time of the last step."},
    MetricInfo{Metric::kJobStepPartSeconds, "milepost_job_step_part_seconds", kGauge, "job_id,part",
               "Where the last step's time went: forward, backward, update, communication_wait "
               "(not hidden behind the others), data_wait."},
    MetricInfo{Metric::kJobMemoryBytes, "milepost_job_memory_bytes", kGauge, "job_id,kind",
               "Of one rank: planned, allocated, and resident_peak of its process."},
    MetricInfo{Metric::kJobLastReport, "milepost_job_last_report_timestamp_seconds", kGauge,
               "job_id", "When the last step was reported, in Unix time."},
    MetricInfo{Metric::kJobCheckpointStep, "milepost_job_checkpoint_step", kGauge, "job_id",
               "Step of the newest committed checkpoint; 0: there is none."},
    MetricInfo{Metric::kJobCheckpointEvery, "milepost_job_checkpoint_every_steps", kGauge, "job_id",
               "Steps from one checkpoint to the next, as the spec says; 0: only at the end."},
    MetricInfo{Metric::kJobCheckpointHoldSeconds, "milepost_job_checkpoint_hold_seconds", kGauge,
               "job_id", "For how long the last checkpoint held up training."},
    MetricInfo{Metric::kJobCheckpointFails, "milepost_job_checkpoint_fails", kGauge, "job_id",
               "1: the newest checkpoint could not be saved; 0: all is well."},
    MetricInfo{Metric::kJobGoodput, "milepost_job_goodput_ratio", kGauge, "job_id",
               "Time in steps that still count over the time since the submission."},
    MetricInfo{Metric::kJobFailures, "milepost_job_failures", kGauge, "job_id",
               "Failures that the restart budget was charged for."},
    MetricInfo{Metric::kJobAttempts, "milepost_job_attempts", kGauge, "job_id",
               "Attempts so far, with the one that runs."},
    MetricInfo{Metric::kJobStragglers, "milepost_job_stragglers", kGauge, "job_id",
               "Ranks that hold up the others."},
    MetricInfo{Metric::kJobDamagedSamples, "milepost_job_damaged_samples", kGauge, "job_id",
               "Training images of this attempt that could not be read and were replaced."},

    MetricInfo{
        Metric::kGpuInfo, "milepost_gpu_info", kGauge,
        "worker,host,slot,uuid,device_model,job_id,rank",
        "Always 1: which job's rank is on which GPU; job_id and rank are empty where none is."},
    MetricInfo{Metric::kGpuUsable, "milepost_gpu_usable", kGauge, "uuid",
               "1: ranks can run on it; 0: it is out of order."},
    MetricInfo{Metric::kGpuUtilization, "milepost_gpu_utilization_ratio", kGauge, "uuid",
               "Share of the time in which some kernel ran."},
    MetricInfo{Metric::kGpuMemoryUsed, "milepost_gpu_memory_used_bytes", kGauge, "uuid",
               "Memory that is used."},
    MetricInfo{Metric::kGpuMemory, "milepost_gpu_memory_bytes", kGauge, "uuid",
               "Memory that a rank may use."},
    MetricInfo{Metric::kGpuPower, "milepost_gpu_power_watts", kGauge, "uuid", "Power drawn."},
    MetricInfo{Metric::kGpuTemperature, "milepost_gpu_temperature_celsius", kGauge, "uuid",
               "Temperature."},
    MetricInfo{Metric::kGpuClock, "milepost_gpu_sm_clock_hertz", kGauge, "uuid",
               "Clock of the multiprocessors."},
    MetricInfo{Metric::kGpuThrottled, "milepost_gpu_throttled", kGauge, "uuid",
               "1: something holds its clocks down; 0: nothing does."},
    MetricInfo{Metric::kGpuEccErrors, "milepost_gpu_ecc_errors", kGauge, "uuid",
               "Memory errors that were not corrected, since the driver was loaded."},
    MetricInfo{Metric::kGpuXid, "milepost_gpu_last_xid", kGauge, "uuid",
               "Number of the driver's newest error report (Xid); 0: none."},
};

constexpr bool IsInOrder() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].metric) != i) return false;
  }
  return kTable.size() == static_cast<size_t>(Metric::kCount);
}
static_assert(IsInOrder(), "the table lists every metric once, in the order of the enum");

absl::string_view KindName(MetricKind kind) {
  return kind == kGauge ? "gauge" : kind == kCounter ? "counter" : "histogram";
}

}  // namespace

absl::Span<const MetricInfo> AllMetrics() { return kTable; }

const MetricInfo& InfoOf(Metric metric) { return kTable[static_cast<size_t>(metric)]; }

std::vector<std::string> LabelsOf(const MetricInfo& info) {
  return absl::StrSplit(info.labels, ',', absl::SkipEmpty());
}

std::string MetricsAsMarkdown() {
  std::string text = "| metric | kind | labels | what it is |\n| --- | --- | --- | --- |\n";
  for (const MetricInfo& info : kTable) {
    absl::StrAppend(&text, "| `", info.name, "` | ", KindName(info.kind), " | ",
                    absl::StrReplaceAll(info.labels, {{",", ", "}}), " | ", info.help, " |\n");
  }
  return text;
}

}  // namespace milepost::coordinator
