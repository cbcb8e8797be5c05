#include "coordinator/core/state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/spec/labels.h"
#include "common/spec/sizes.h"

namespace milepost::coordinator {

namespace {

int64_t NumberOf(absl::string_view name, absl::string_view prefix) {
  int64_t number = 0;
  if (!absl::ConsumePrefix(&name, prefix) || !absl::SimpleAtoi(name, &number)) return 0;
  return number > 0 && absl::StrCat(number) == name ? number : 0;
}

}  // namespace

int64_t JobNumber(absl::string_view name) { return NumberOf(name, "jobs/"); }
int64_t ArrayNumber(absl::string_view name) { return NumberOf(name, "arrays/"); }

std::string JobName(int64_t number) { return absl::StrCat("jobs/", number); }
std::string ArrayName(int64_t number) { return absl::StrCat("arrays/", number); }

absl::Status NoSuchJob(absl::string_view name) {
  return Refusal(v1::ERROR_REASON_JOB_NOT_FOUND, name,
                 absl::StrCat("there is no job '", name, "'"));
}

absl::Status NoSuchQueue(absl::string_view name) {
  return Refusal(v1::ERROR_REASON_QUEUE_NOT_FOUND, name,
                 absl::StrCat("there is no queue '", name, "'"));
}

absl::Status EtagMismatch(absl::string_view name, absl::string_view given, int64_t version) {
  return Refusal(v1::ERROR_REASON_ETAG_MISMATCH, name,
                 absl::StrCat(name, " was changed by someone else (etag ", EtagOf(version),
                              ", not ", given, "): read it again and repeat the change"));
}

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

int LeastRanksOf(const v1::JobRecord& record) {
  return record.sizes_size() > 0 ? record.sizes(0).ranks()
                                 : LeastRanks(record.job().spec().resources());
}

bool HasRankOn(const v1::JobRecord& record, const std::string& worker) {
  return std::any_of(record.ranks().begin(), record.ranks().end(), [&](const v1::RankRecord& rank) {
    return rank.worker() == worker && !rank.gone();
  });
}

bool AllKilled(const v1::JobRecord& record) {
  return std::all_of(record.ranks().begin(), record.ranks().end(), [](const v1::RankRecord& rank) {
    return rank.gone() || rank.stop() == v1::STOP_KIND_KILL;
  });
}

bool IsAvoided(const v1::WorkerRecord& record, absl::Time since) {
  return record.failures_size() > 0 &&
         FromProto(record.failures(record.failures_size() - 1).time()) > since;
}

bool IsConnected(const v1::Worker& worker) {
  return worker.state() == v1::WORKER_STATE_READY || worker.state() == v1::WORKER_STATE_DRAINING ||
         worker.state() == v1::WORKER_STATE_DRAINED;
}

const std::string& PoolOf(const v1::Worker& worker) {
  static const auto* const kNone = new std::string;
  const auto pool = worker.labels().find(kPoolLabel);
  return pool == worker.labels().end() ? *kNone : pool->second;
}

std::string AwaitedCheckpoint(const v1::JobRecord& record) {
  const v1::Job& job = record.job();
  const bool has_own = !job.latest_checkpoint().empty();
  return IsTerminal(job.state()) || has_own ? "" : job.spec().checkpoint().resume_from();
}

absl::Time NextHealthCheck(const v1::Worker& worker) {
  if (!worker.has_exclusion() || !IsConnected(worker)) return absl::InfiniteFuture();
  return FromProto(worker.exclusion().next_check_time());
}

absl::Time TimeLimitEnd(const v1::JobRecord& record) {
  const double limit = record.job().spec().scheduling().time_limit();
  const bool runs = !record.ranks().empty() && IsSet(record.attempt_start_time());
  if (limit <= 0 || !runs) return absl::InfiniteFuture();
  return FromProto(record.attempt_start_time()) + absl::Seconds(limit - record.held_before());
}

std::string EtagOf(int64_t version) { return absl::StrCat("v", version); }

std::string QueueId(absl::string_view name) {
  return absl::ConsumePrefix(&name, "queues/") ? std::string(name) : "";
}

std::string QueueName(absl::string_view id) { return absl::StrCat("queues/", id); }

static bool SameWorkers(const v1::JobRecord& a, const v1::JobRecord& b) {
  return std::equal(a.ranks().begin(), a.ranks().end(), b.ranks().begin(), b.ranks().end(),
                    [](const v1::RankRecord& one, const v1::RankRecord& other) {
                      return one.worker() == other.worker();
                    });
}

void State::Index(int64_t number, const v1::JobRecord& record) {
  const auto mark = [number](std::set<int64_t>& jobs, bool in) {
    in ? void(jobs.insert(number)) : void(jobs.erase(number));
  };
  const bool has_ranks = !record.ranks().empty();
  const bool limited = has_ranks && record.job().spec().scheduling().time_limit() > 0;
  mark(active_, !IsTerminal(record.job().state()));
  mark(with_ranks_, has_ranks);
  mark(timed_, limited || IsSet(record.stop_deadline()) || IsSet(record.resize_after()) ||
                   IsSet(record.job().next_attempt_time()));
  const v1::JobRecord* before = FindJob(number);
  // Progress comes thousands of times a second and moves no rank.
  if (before != nullptr && SameWorkers(*before, record)) return;
  if (before != nullptr) {
    for (const v1::RankRecord& rank : before->ranks()) {
      auto on = by_worker_.find(rank.worker());
      if (on == by_worker_.end()) continue;
      on->second.erase(number);
      if (on->second.empty()) by_worker_.erase(on);
    }
  }
  for (const v1::RankRecord& rank : record.ranks()) by_worker_[rank.worker()].insert(number);
}

const std::set<int64_t>& State::WithRanksOn(const std::string& worker) const {
  static const auto* const kNone = new std::set<int64_t>;
  const auto found = by_worker_.find(worker);
  return found == by_worker_.end() ? *kNone : found->second;
}

void State::PutJob(v1::JobRecord record) {
  const int64_t number = JobNumber(record.job().name());
  Index(number, record);
  if (!record.request_id().empty()) requests_[record.request_id()] = number;
  largest_queue_order_ = std::max(largest_queue_order_, record.queue_order());
  NoteLastJob(number);
  jobs_[number] = std::move(record);
}

void State::NoteLastJob(int64_t number) { last_job_ = std::max(last_job_, number); }

// One that has ended: it has no ranks.
void State::DeleteJob(int64_t number) {
  const auto found = jobs_.find(number);
  if (found == jobs_.end()) return;
  if (const auto request = requests_.find(found->second.request_id());
      request != requests_.end() && request->second == number) {
    requests_.erase(request);
  }
  active_.erase(number);
  with_ranks_.erase(number);
  timed_.erase(number);
  speeds_.Forget(number);
  jobs_.erase(found);
}

void State::PutWorker(v1::WorkerRecord record) {
  std::string name = record.worker().name();
  workers_[std::move(name)] = std::move(record);
}

void State::PutQueue(v1::QueueRecord record) {
  std::string id = QueueId(record.queue().name());
  queues_[std::move(id)] = std::move(record);
}

void State::ApplyOthers(const Outcome& outcome) {
  for (const auto& [id, record] : outcome.queues) {
    record.has_value() ? PutQueue(*record) : void(queues_.erase(id));
  }
  for (const std::string& name : outcome.forgotten_workers) workers_.erase(name);
  for (const int64_t number : outcome.deleted_jobs) DeleteJob(number);
  NoteLastJob(outcome.last_job);
  if (outcome.view != nullptr) queue_view_ = outcome.view;
  for (const SpeedSample& sample : outcome.speeds) speeds_.Add(sample);
  for (const auto& [number, record] : outcome.jobs) {
    if (record.ranks().empty()) speeds_.Forget(number);
  }
}

void State::Apply(const Outcome& outcome) {
  ApplyOthers(outcome);
  for (const auto& [number, record] : outcome.jobs) PutJob(record);
  for (const auto& [name, record] : outcome.workers) PutWorker(record);
}

void State::Take(Outcome* outcome) {
  ApplyOthers(*outcome);
  for (auto& [number, record] : outcome->jobs) PutJob(std::move(record));
  for (auto& [name, record] : outcome->workers) PutWorker(std::move(record));
}

const v1::JobRecord* State::FindJob(int64_t number) const {
  auto found = jobs_.find(number);
  return found == jobs_.end() ? nullptr : &found->second;
}

const v1::JobRecord* State::FindOfArray(const std::string& array) const {
  const int64_t first = ArrayNumber(array);
  if (first == 0) return nullptr;
  for (auto it = jobs_.lower_bound(first); it != jobs_.end(); ++it) {
    if (it->first - first >= kMostJobsOfArray) break;
    if (it->second.job().array().name() == array) return &it->second;
  }
  return nullptr;
}

const v1::WorkerRecord* State::FindWorker(const std::string& name) const {
  auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second;
}

const v1::QueueRecord* State::FindQueue(const std::string& id) const {
  auto found = queues_.find(id);
  return found == queues_.end() ? nullptr : &found->second;
}

int64_t State::FindRequest(const std::string& request_id) const {
  auto found = requests_.find(request_id);
  return found == requests_.end() ? 0 : found->second;
}

}  // namespace milepost::coordinator
