// What running attempts tell: how far a job is, its checkpoints, and ranks that hold up the others.
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/proto_time.h"
#include "common/spec/sizes.h"
#include "coordinator/core/productive_steps.h"
#include "coordinator/core/stragglers.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {
namespace {

// Progress of the job is rank 0's: it has the gang's means. The first of an attempt says how much
// of those before still counts; one that begins beyond all earlier ones has made progress.
void TakeProgress(v1::JobRecord* record, const v1::Progress& progress) {
  v1::Job* job = record->mutable_job();
  if (job->progress().productive_seconds() <= 0 && !record->productive().empty()) {
    record->set_productive_before(
        CutProductive(progress.start_step(), record->mutable_productive()));
  }
  if (progress.start_step() > record->best_step()) {
    record->set_best_step(progress.start_step());
    job->set_failures(0);
  }
  *job->mutable_progress() = progress;
  job->set_productive_seconds(record->productive_before() + progress.productive_seconds());
  if (!IsSet(job->first_step_time()) && IsSet(progress.first_step_time())) {
    *job->mutable_first_step_time() = progress.first_step_time();
  }
}

}  // namespace

void Transition::Checkpoints(const std::string& name, const std::string& newest,
                             int64_t newest_step) {
  const int64_t number = JobNumber(name);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) return;
  if (known->job().latest_checkpoint() == newest && known->newest_step() == newest_step) return;
  v1::JobRecord& record = Change(number);
  record.mutable_job()->set_latest_checkpoint(newest);
  record.set_newest_step(newest_step);
  if (newest_step > record.best_step()) {
    record.set_best_step(newest_step);
    record.mutable_job()->set_failures(0);
  }
}

bool Transition::Progressed(const std::string& worker, const v1::RankProgress& report) {
  Renew(worker);
  const int64_t number = JobNumber(report.job());
  const v1::JobRecord* known = Job(number);
  if (known == nullptr || known->job().generation() != report.generation()) return false;
  const int rank = report.rank();
  if (rank < 0 || rank >= known->ranks_size() || known->ranks(rank).worker() != worker)
    return false;
  const v1::Progress& progress = report.progress();
  const double own = progress.step_seconds() - progress.communication_wait_seconds();
  outcome_.speeds.push_back({.job = number,
                             .generation = report.generation(),
                             .rank = rank,
                             .world = known->ranks_size(),
                             .step = progress.step(),
                             .seconds = own,
                             .time = now_,
                             .memory = {.planned = progress.planned_bytes(),
                                        .allocated = progress.allocated_bytes(),
                                        .required = progress.required_bytes(),
                                        .peak_resident = progress.peak_resident_bytes()}});
  if (rank != 0) return false;
  v1::JobRecord& record = ChangeSoft(number);
  NoteProgress(progress, &record);
  return NoteStragglers(number, &record);
}

void Transition::NoteProgress(const v1::Progress& progress, v1::JobRecord* record) {
  TakeProgress(record, progress);
  outcome_.reports.push_back(
      {.job = JobNumber(record->job().name()),
       .generation = record->job().generation(),
       .time = now_,
       .progress = progress,
       .finds_own_start = record->job().spec().has_script() && progress.restored_from().empty()});
}

bool Transition::NoteStragglers(int64_t number, v1::JobRecord* record) {
  std::vector<v1::Straggler> stragglers =
      state_.speeds().Stragglers(number, record->job().generation(), now_, config_.straggler_after);
  // Stages of a pipeline have unlike shares of the work.
  const bool unlike = PipelineStages(record->job().spec().resources()) > 1;
  std::erase_if(stragglers, [&](const v1::Straggler& straggler) {
    return unlike || straggler.rank() >= record->ranks_size() ||
           record->ranks(straggler.rank()).gone();
  });
  for (v1::Straggler& straggler : stragglers) {
    straggler.set_worker(record->ranks(straggler.rank()).worker());
  }
  record->mutable_job()->mutable_stragglers()->Assign(stragglers.begin(), stragglers.end());
  if (stragglers.empty() || record->ending() != v1::ATTEMPT_ENDING_NONE) return false;
  if (!record->job().spec().restart().replace_stragglers()) return false;
  // A host that is avoided already has been given ranks for want of another.
  const v1::WorkerRecord* worker = Worker(stragglers[0].worker());
  if (worker == nullptr || IsAvoided(*worker, now_ - config_.avoid_after_failure)) return false;
  ReplaceStraggler(number, stragglers[0]);
  return true;
}

// The job goes on where placement finds another host for it.
void Transition::ReplaceStraggler(int64_t number, const v1::Straggler& straggler) {
  NoteHostFailure(straggler.worker(), v1::FAILURE_CLASS_HOST, JobName(number));
  BeginEnding(number, v1::ATTEMPT_ENDING_REQUEUE, v1::JOB_REASON_STRAGGLER,
              absl::StrFormat("rank %d on %s needs %.2f times as long as the others: its ranks "
                              "checkpoint and go on elsewhere",
                              straggler.rank(), straggler.worker(), straggler.ratio()));
  Settle(number);
}

}  // namespace milepost::coordinator
