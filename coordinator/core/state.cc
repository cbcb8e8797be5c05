#include "coordinator/core/state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace milepost::coordinator {

int64_t JobNumber(absl::string_view name) {
  int64_t number = 0;
  if (!absl::ConsumePrefix(&name, "jobs/") || !absl::SimpleAtoi(name, &number)) return 0;
  return number > 0 && absl::StrCat(number) == name ? number : 0;
}

std::string JobName(int64_t number) { return absl::StrCat("jobs/", number); }

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

void State::PutJob(v1::JobRecord record) {
  const int64_t number = JobNumber(record.job().name());
  if (IsTerminal(record.job().state())) {
    active_.erase(number);
  } else {
    active_.insert(number);
  }
  if (!record.request_id().empty()) requests_[record.request_id()] = number;
  largest_queue_order_ = std::max(largest_queue_order_, record.queue_order());
  jobs_[number] = std::move(record);
}

void State::PutWorker(v1::WorkerRecord record) {
  std::string name = record.worker().name();
  workers_[std::move(name)] = std::move(record);
}

void State::Apply(const Outcome& outcome) {
  for (const auto& [number, record] : outcome.jobs) PutJob(record);
  for (const auto& [name, record] : outcome.workers) PutWorker(record);
}

const v1::JobRecord* State::FindJob(int64_t number) const {
  auto found = jobs_.find(number);
  return found == jobs_.end() ? nullptr : &found->second;
}

const v1::WorkerRecord* State::FindWorker(const std::string& name) const {
  auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second;
}

int64_t State::FindRequest(const std::string& request_id) const {
  auto found = requests_.find(request_id);
  return found == requests_.end() ? 0 : found->second;
}

}  // namespace milepost::coordinator
