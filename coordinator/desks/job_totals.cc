#include "coordinator/desks/job_totals.h"

#include "coordinator/core/state.h"
#include "coordinator/security/principal.h"

namespace milepost::coordinator {

std::string ProjectOfJob(const v1::Job& job) {
  return job.project().empty() ? kDefaultProject : job.project();
}

JobTotals::ByState::iterator JobTotals::Place(const v1::Job& job) {
  const auto place = by_state_.try_emplace({job.spec().scheduling().queue(), job.state()}).first;
  ++place->second;
  return place;
}

void JobTotals::Leave(ByState::iterator place) {
  if (--place->second == 0) by_state_.erase(place);
}

void JobTotals::Stored(int64_t number, const v1::JobRecord& record) {
  const auto [found, is_new] = jobs_.try_emplace(number);
  Counted& counted = found->second;
  const v1::JobState state = record.job().state();
  Counted now = {record.ByteSizeLong(), !IsTerminal(state)};
  now.waiting = state == v1::JOB_STATE_QUEUED;
  now.running = now.active && !now.waiting && state != v1::JOB_STATE_SUSPENDED;
  now.place = Place(record.job());
  if (!is_new) Leave(counted.place);
  bytes_ = bytes_ - counted.bytes + now.bytes;
  waiting_ = waiting_ - counted.waiting + now.waiting;
  running_ = running_ - counted.running + now.running;
  if (now.active != counted.active) {
    const std::string project = ProjectOfJob(record.job());
    size_t& active = active_[project];
    active = now.active ? active + 1 : active - 1;
    if (active == 0) active_.erase(project);
  }
  counted = now;
}

void JobTotals::Deleted(int64_t number) {
  const auto found = jobs_.find(number);
  if (found == jobs_.end()) return;
  bytes_ -= found->second.bytes;
  Leave(found->second.place);
  waiting_ -= found->second.waiting;
  running_ -= found->second.running;
  jobs_.erase(found);
}

size_t JobTotals::ActiveOf(const std::string& project) const {
  const auto found = active_.find(project);
  return found == active_.end() ? 0 : found->second;
}

}  // namespace milepost::coordinator
