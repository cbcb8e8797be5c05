#include "coordinator/core/transition.h"

#include <algorithm>

#include "common/check.h"
#include "common/proto_time.h"

namespace milepost::coordinator {
namespace {

// Of a job: how it began, and what happened last.
constexpr int kFirstEvents = 10;
constexpr int kMostEvents = 50;

// Nothing has happened to the job since.
bool IsLatest(const v1::JobEvent& event, const v1::Job& job) {
  return event.state() == job.state() && event.reason() == job.reason() &&
         event.generation() == job.generation();
}

}  // namespace

const v1::JobRecord* Transition::Job(int64_t number) const {
  if (outcome_.deleted_jobs.contains(number)) return nullptr;
  auto found = outcome_.jobs.find(number);
  return found != outcome_.jobs.end() ? &found->second : state_.FindJob(number);
}

const v1::WorkerRecord* Transition::Worker(const std::string& name) const {
  if (outcome_.forgotten_workers.contains(name)) return nullptr;
  auto found = outcome_.workers.find(name);
  return found != outcome_.workers.end() ? &found->second : state_.FindWorker(name);
}

v1::JobRecord& Transition::ChangeSoft(int64_t number) {
  touched_.insert(number);
  auto found = outcome_.jobs.find(number);
  if (found != outcome_.jobs.end()) return found->second;
  const v1::JobRecord* record = state_.FindJob(number);
  MP_CHECK(record != nullptr) << "job " << number;
  return outcome_.jobs[number] = *record;
}

v1::JobRecord& Transition::Change(int64_t number) {
  outcome_.durable_jobs.insert(number);
  return ChangeSoft(number);
}

v1::WorkerRecord& Transition::ChangeWorkerSoft(const std::string& name) {
  auto found = outcome_.workers.find(name);
  if (found != outcome_.workers.end()) return found->second;
  const v1::WorkerRecord* record = state_.FindWorker(name);
  MP_CHECK(record != nullptr) << "worker " << name;
  return outcome_.workers[name] = *record;
}

v1::WorkerRecord& Transition::ChangeWorker(const std::string& name) {
  outcome_.durable_workers.insert(name);
  return ChangeWorkerSoft(name);
}

const v1::QueueRecord* Transition::Queue(const std::string& id) const {
  auto found = outcome_.queues.find(id);
  if (found == outcome_.queues.end()) return state_.FindQueue(id);
  return found->second.has_value() ? &*found->second : nullptr;
}

int64_t Transition::NextJobNumber() const {
  const int64_t next = state_.NextJobNumber();
  return outcome_.jobs.empty() ? next : std::max(next, outcome_.jobs.rbegin()->first + 1);
}

int64_t Transition::NextQueueOrder() { return state_.NextQueueOrder() + queue_orders_++; }

std::vector<int64_t> Transition::JobsWithRanks() const {
  std::vector<int64_t> numbers;
  for (int64_t number : state_.with_ranks()) {
    if (!Job(number)->ranks().empty()) numbers.push_back(number);
  }
  for (const auto& [number, record] : outcome_.jobs) {
    if (!state_.with_ranks().contains(number) && !record.ranks().empty()) numbers.push_back(number);
  }
  return numbers;
}

std::vector<int64_t> Transition::JobsOn(const std::string& worker) const {
  const std::set<int64_t>& known = state_.WithRanksOn(worker);
  std::vector<int64_t> numbers(known.begin(), known.end());
  for (const auto& [number, record] : outcome_.jobs) {
    if (!known.contains(number) && !record.ranks().empty()) numbers.push_back(number);
  }
  return numbers;
}

void Transition::NoteEvents() {
  for (const int64_t number : touched_) {
    v1::JobRecord& record = outcome_.jobs[number];
    const v1::Job& job = record.job();
    if (record.events_size() > 0 && IsLatest(*record.events().rbegin(), job)) continue;
    if (record.events_size() == kMostEvents) {
      record.mutable_events()->DeleteSubrange(kFirstEvents, 1);
      record.set_events_left_out(record.events_left_out() + 1);
    }
    v1::JobEvent* event = record.add_events();
    *event->mutable_time() = ToProto(now_);
    event->set_state(job.state());
    event->set_reason(job.reason());
    event->set_detail(job.reason_detail());
    event->set_generation(job.generation());
    event->set_ranks(record.ranks_size());
  }
  touched_.clear();
}

}  // namespace milepost::coordinator
