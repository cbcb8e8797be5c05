// What a job that is about to be stored begins with is being read until then (Keep): so who looks
// at the jobs and deletes under one lock misses none.
#include "coordinator/desks/checkpoint_desk.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/desks/attempt_desk.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kEmptyingInterval = absl::Minutes(1);
constexpr int32_t kKeptOfScript = 3;  // whose spec is stored as it was given

}  // namespace

// ---- committing ----

absl::StatusOr<v1::Checkpoint> CheckpointDesk::Commit(const v1::CommitCheckpointRequest& request,
                                                      const Committer& committer) {
  CheckpointStore& store = store_->checkpoints();
  const std::string& job = request.job();
  MP_RETURN_IF_ERROR(CheckOwner(request.checkpoint(), job, request.generation()));
  MP_RETURN_IF_ERROR(store.WaitStreams(request.checkpoint(), committer.deadline, committer.gone));
  MP_RETURN_IF_ERROR(committer.holds());
  // All that takes time, and can be seen by nobody yet.
  MP_ASSIGN_OR_RETURN(PreparedCheckpoint prepared,
                      store.Prepare(request.checkpoint(), absl::Now()));
  const v1::Checkpoint checkpoint = prepared.checkpoint();
  if (prepared.committed()) return checkpoint;  // by another rank, or before
  // By the loop, between two decisions: no other generation can come to be meanwhile, and the next
  // decision is the one that notes the checkpoint with its job.
  absl::Status published = Stopping();
  Loop::Entry entry = loop_.NoteNewest(job);
  entry.event = [&, note = std::move(entry.event)]() mutable -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    published = attempts_->CheckGenerationLocked(job, request.generation());
    if (published.ok()) published = prepared.Publish();
    return published.ok() ? note() : std::nullopt;
  };
  const absl::Status noted = Do(std::move(entry)).status();
  if (!published.ok()) {
    const absl::Status& why = noted.ok() ? published : noted;
    prepared.Drop(why);
    return why;
  }
  // It stands whatever happens from here on.
  if (!noted.ok()) {
    spdlog::warn("the newest checkpoint of {} cannot be noted yet: {}", job,
                 std::string(noted.message()));
  }
  spdlog::info("{}: step {} of {} is committed, {} bytes", checkpoint.name(), checkpoint.step(),
               job, checkpoint.bytes());
  Retain(job);
  return checkpoint;
}

absl::Status CheckpointDesk::CheckOwner(const std::string& name, const std::string& job,
                                        int64_t generation) {
  MP_ASSIGN_OR_RETURN(v1::Checkpoint owner, store_->checkpoints().Owner(name));
  if (owner.job() == job && owner.generation() == generation) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_GENERATION_OVER, name,
                 absl::StrCat(name, " belongs to ", owner.job(), " generation ", owner.generation(),
                              ", not to ", job, " generation ", generation));
}

CheckpointsChanged CheckpointDesk::Newest(const std::string& job) const {
  const auto newest = store_->checkpoints().Newest(job);
  return {job, newest ? newest->name() : "", newest ? newest->step() : 0};
}

absl::Status CheckpointDesk::UpdateNewest(const std::string& job) {
  return Do(loop_.NoteNewest(job)).status();
}

// ---- what goes and what stays ----

std::set<std::string> CheckpointDesk::AwaitedLocked() const {
  std::set<std::string> names;
  for (const int64_t number : state_.active()) {
    if (std::string name = AwaitedCheckpoint(*state_.FindJob(number)); !name.empty()) {
      names.insert(std::move(name));
    }
  }
  return names;
}

void CheckpointDesk::Retain(const std::string& job) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::JobRecord* record = state_.FindJob(JobNumber(job));
  if (record == nullptr) return;
  const v1::CheckpointSpec& spec = record->job().spec().checkpoint();
  const auto deleted = store_->checkpoints().Retain(
      job, {.keep_last = spec.has_keep_last() ? spec.keep_last() : kKeptOfScript,
            .keep_every = spec.keep_every(),
            .keep_best = spec.keep_best(),
            .awaited = AwaitedLocked()});
  if (deleted.ok()) return;
  spdlog::warn("old checkpoints of {} cannot be deleted: {}", job,
               std::string(deleted.status().message()));
}

void CheckpointDesk::LandingLocked(const State& before, const Outcome& outcome) {
  for (const auto& [number, record] : outcome.jobs) {
    const v1::JobRecord* known = before.FindJob(number);
    if (known == nullptr || !AwaitedCheckpoint(record).empty()) continue;
    if (std::string name = AwaitedCheckpoint(*known); !name.empty()) released_.insert(name);
  }
}

void CheckpointDesk::Landed() {
  for (const std::string& name : std::exchange(released_, {})) {
    const auto owner = store_->checkpoints().Owner(name);
    if (owner.ok()) Retain(owner->job());
  }
}

absl::Status CheckpointDesk::Delete(const std::string& name, bool purge) {
  CheckpointStore& checkpoints = store_->checkpoints();
  MP_ASSIGN_OR_RETURN(const v1::Checkpoint owner, checkpoints.Owner(name));
  absl::ReaderMutexLock lock(&mutex_);
  if (AwaitedLocked().contains(name)) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_AWAITED, name,
                   absl::StrCat(name,
                                " is what a job is to begin with that has no checkpoint of "
                                "its own yet"));
  }
  const v1::JobRecord* job = state_.FindJob(JobNumber(owner.job()));
  const bool goes_on = job != nullptr && !IsTerminal(job->job().state());
  return purge ? checkpoints.Delete(name, /*keep_newest=*/goes_on)
               : checkpoints.Bin(name, /*keep_newest=*/goes_on, clock_->Now());
}

void CheckpointDesk::EmptyBin() {
  const absl::Time now = SteadyNow();
  if (now < next_emptying_) return;
  next_emptying_ = now + kEmptyingInterval;
  const absl::Status status = store_->checkpoints().EmptyBin(clock_->Now());
  if (status.ok()) return;
  spdlog::warn("deleted checkpoints cannot be removed: {}", std::string(status.message()));
}

// ---- what jobs are to begin with ----

std::unique_ptr<CheckpointReader> CheckpointDesk::Keep(const v1::JobSpec& spec) {
  const std::string& from = spec.checkpoint().resume_from();
  if (from.empty()) return nullptr;
  auto reader = store_->checkpoints().Keep(from);
  return reader.ok() ? *std::move(reader) : nullptr;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointDesk::KeepForResuming(
    const std::string& job, const std::string& request_id) {
  v1::JobSpec spec;
  {
    absl::ReaderMutexLock lock(&mutex_);
    const v1::JobRecord* record = state_.FindJob(JobNumber(job));
    if (record == nullptr || HasResumed(*record, request_id)) return nullptr;
    const bool ended = IsTerminal(record->job().state());
    if (!ended || !record->job().latest_checkpoint().empty()) return nullptr;
    *spec.mutable_checkpoint() = record->job().spec().checkpoint();
  }
  const std::string& from = spec.checkpoint().resume_from();
  if (from.empty()) return nullptr;
  std::unique_ptr<CheckpointReader> kept = Keep(spec);
  const auto checkpoint = store_->checkpoints().Get(from);
  const bool there = checkpoint.ok() && !checkpoint->checkpoint().has_delete_time();
  if (kept != nullptr && there && !checkpoint->checkpoint().damaged()) return kept;
  return Refusal(v1::ERROR_REASON_START_CHECKPOINT_GONE, from,
                 absl::StrCat(job, " has no checkpoint of its own, and ", from,
                              ", which it would begin with, is ", there ? "damaged" : "gone",
                              ": submit a job that begins with another, or with none"));
}

}  // namespace milepost::coordinator
