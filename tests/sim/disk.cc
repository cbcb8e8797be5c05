#include "tests/sim/disk.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace milepost::sim {

absl::Status Disk::Write(const coordinator::Outcome& outcome) {
  if (!outcome.NeedsWrite()) return absl::OkStatus();
  if (full) return absl::ResourceExhaustedError("the disk is full");
  const bool undoable = plant_ == Plant::kAcknowledgeUnsynced;
  if (undoable) undo_ = {};
  for (const int64_t number : outcome.durable_jobs) {
    const auto before = jobs_.find(number);
    if (undoable && before != jobs_.end()) undo_.jobs[number] = before->second;
    if (undoable && before == jobs_.end()) undo_.jobs[number] = std::nullopt;
    v1::JobRecord& record = jobs_[number];
    const v1::JobRecord old = plant_ == Plant::kNone ? v1::JobRecord() : record;
    record = outcome.jobs.at(number);
    if (plant_ == Plant::kForgetGeneration && !record.ranks().empty()) {
      record.mutable_job()->set_generation(old.job().generation());
    } else if (plant_ == Plant::kForgetRanks && old.ranks().empty()) {
      record.clear_ranks();
    } else if (plant_ == Plant::kForgetRequest) {
      record.clear_request_id();
    } else if (plant_ == Plant::kForgetCancel && record.job().cancel_requested()) {
      if (!old.job().name().empty()) record = old;
    } else if (plant_ == Plant::kForgetTimeHeld) {
      record.set_held_before(0);
    }
  }
  for (const std::string& name : outcome.durable_workers) {
    const auto before = workers_.find(name);
    if (undoable && before != workers_.end()) undo_.workers[name] = before->second;
    if (undoable && before == workers_.end()) undo_.workers[name] = std::nullopt;
    v1::WorkerRecord& record = workers_[name];
    record = outcome.workers.at(name);
    if (plant_ == Plant::kForgetDrain) record.mutable_worker()->clear_drain();
  }
  for (const std::string& name : outcome.forgotten_workers) {
    const auto known = workers_.find(name);
    if (known == workers_.end()) continue;
    if (undoable) undo_.workers[name] = known->second;
    workers_.erase(known);
  }
  for (const auto& [id, record] : outcome.queues) {
    record.has_value() ? void(queues_[id] = *record) : void(queues_.erase(id));
  }
  return absl::OkStatus();
}

coordinator::State Disk::Load() const {
  coordinator::State state;
  for (const auto& [number, record] : jobs_) state.PutJob(record);
  for (const auto& [name, record] : workers_) state.PutWorker(record);
  for (const auto& [id, record] : queues_) state.PutQueue(record);
  return state;
}

void Disk::Crash() {
  open_.clear();
  claimed_.clear();
  for (auto& [number, record] : undo_.jobs) {
    record.has_value() ? void(jobs_[number] = *record) : void(jobs_.erase(number));
  }
  for (auto& [name, record] : undo_.workers) {
    record.has_value() ? void(workers_[name] = *record) : void(workers_.erase(name));
  }
  undo_ = {};
}

absl::StatusOr<int64_t> Disk::Begin(int64_t job, int64_t generation, int64_t step) {
  for (const SavedCheckpoint& saved : saved_[job]) {
    if (saved.generation == generation && saved.step == step) {
      return absl::AlreadyExistsError(absl::StrCat("checkpoints/", saved.number));
    }
  }
  if (const auto open = open_.find(job); open != open_.end()) {
    const SavedCheckpoint& known = open->second;
    if (known.generation == generation && known.step == step) return known.number;
    if (known.generation > generation) return absl::AbortedError("a newer generation saves");
  }
  if (full) return absl::ResourceExhaustedError("the disk is full");
  open_[job] = {next_checkpoint_, generation, step};
  return next_checkpoint_++;
}

absl::Status Disk::Claim(int64_t job, int64_t number) {
  for (const SavedCheckpoint& saved : saved_[job]) {
    if (saved.number == number) return absl::OkStatus();
  }
  const auto open = open_.find(job);
  if (open == open_.end() || open->second.number != number) {
    return absl::NotFoundError("swept: begin again");
  }
  claimed_.insert(number);
  return absl::OkStatus();
}

void Disk::Drop(int64_t job, int64_t number) {
  claimed_.erase(number);
  const auto open = open_.find(job);
  if (open != open_.end() && open->second.number == number) open_.erase(open);
}

absl::Status Disk::Commit(int64_t job, int64_t number) {
  for (const SavedCheckpoint& saved : saved_[job]) {
    if (saved.number == number) return absl::OkStatus();
  }
  const auto open = open_.find(job);
  if (open == open_.end() || open->second.number != number) {
    return absl::NotFoundError("swept: begin again");
  }
  if (full) return absl::ResourceExhaustedError("the disk is full");
  saved_[job].push_back(open->second);
  open_.erase(open);
  claimed_.erase(number);
  return absl::OkStatus();
}

void Disk::AbortOlder(int64_t job, int64_t generation) {
  const auto open = open_.find(job);
  if (open == open_.end() || claimed_.contains(open->second.number)) return;
  if (open->second.generation < generation) open_.erase(open);
}

std::optional<SavedCheckpoint> Disk::Newest(int64_t job) const {
  const auto found = saved_.find(job);
  if (found == saved_.end() || found->second.empty()) return std::nullopt;
  return *std::max_element(found->second.begin(), found->second.end(),
                           [](const SavedCheckpoint& a, const SavedCheckpoint& b) {
                             return std::pair(a.step, a.number) < std::pair(b.step, b.number);
                           });
}

void Disk::Retain(int64_t job, int keep_last) {
  std::vector<SavedCheckpoint>& saved = saved_[job];
  std::sort(saved.begin(), saved.end(), [](const SavedCheckpoint& a, const SavedCheckpoint& b) {
    return std::pair(a.step, a.number) < std::pair(b.step, b.number);
  });
  const auto keep = static_cast<size_t>(keep_last);
  if (saved.size() > keep) saved.erase(saved.begin(), saved.end() - keep_last);
}

}  // namespace milepost::sim
