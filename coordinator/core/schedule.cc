// The queue: strictly first come, first served.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

namespace {

std::string DeviceName(v1::DeviceKind device) {
  return absl::AsciiStrToLower(v1::DeviceKind_Name(device).substr(12));
}

int RankCount(const v1::JobRecord& record) {
  return std::max(1, record.job().spec().resources().ranks());
}

}  // namespace

FreeSlots Transition::FindFreeSlots(v1::DeviceKind device) const {
  FreeSlots free;
  auto add = [&](const std::string& name) {
    const v1::WorkerRecord& record = *Worker(name);
    if (record.worker().state() != v1::WORKER_STATE_READY || record.leaving()) return;
    std::vector<int>& slots = free[name];
    for (const v1::Slot& slot : record.worker().slots()) {
      if (slot.device() == device) slots.push_back(slot.index());
    }
    for (const v1::RankPlacementOfJob& stale : record.stale()) std::erase(slots, stale.slot());
    std::sort(slots.begin(), slots.end());
  };
  for (const auto& [name, record] : state_.workers()) add(name);
  for (const auto& [name, record] : outcome_.workers) {
    if (state_.FindWorker(name) == nullptr) add(name);
  }
  for (int64_t number : ActiveJobs()) {
    for (const v1::RankRecord& rank : Job(number)->ranks()) {
      auto worker = free.find(rank.worker());
      if (!rank.gone() && worker != free.end()) std::erase(worker->second, rank.slot());
    }
  }
  return free;
}

void Transition::Schedule() {
  std::vector<std::pair<int64_t, int64_t>> queue;  // (order, number)
  for (int64_t number : ActiveJobs()) {
    const v1::JobRecord& record = *Job(number);
    const bool winding_up = !record.ranks().empty() && record.ending() != v1::ATTEMPT_ENDING_NONE &&
                            record.ending() != v1::ATTEMPT_ENDING_CANCEL;
    if (record.ranks().empty() || winding_up) queue.emplace_back(record.queue_order(), number);
  }
  if (queue.empty()) return;
  std::sort(queue.begin(), queue.end());
  std::map<v1::DeviceKind, FreeSlots> free_by_device;
  std::set<v1::DeviceKind> blocked;
  std::map<v1::DeviceKind, int64_t> blockers;
  std::map<v1::DeviceKind, int> ahead;
  for (const auto& [order, number] : queue) {
    const v1::JobRecord& record = *Job(number);
    const v1::DeviceKind device = record.job().spec().resources().device();
    auto [entry, added] = free_by_device.try_emplace(device);
    if (added) entry->second = FindFreeSlots(device);
    // An attempt that winds up will need its slots again: whoever came later waits that long.
    bool can_place = !blocked.contains(device) && record.ranks().empty();
    const int free = CountSlots(entry->second);
    std::vector<PlacedRank> placed;
    if (can_place) placed = TakeSlots(RankCount(record), &entry->second);
    const bool due = !IsSet(record.job().next_attempt_time()) ||
                     FromProto(record.job().next_attempt_time()) <= now_;
    if (!placed.empty() && due) {
      StartAttempt(number, placed);
      continue;
    }
    if (IsSet(record.job().next_attempt_time()) && due) {
      ChangeSoft(number).mutable_job()->clear_next_attempt_time();
    }
    if (record.ranks().empty() && due) ExplainWait(number, free, ahead[device], blockers[device]);
    ++ahead[device];
    if (placed.empty() && blocked.insert(device).second) blockers[device] = number;
  }
}

void Transition::ExplainWait(int64_t number, int free, int ahead, int64_t blocker) {
  const v1::Job& job = Job(number)->job();
  const std::string device = DeviceName(job.spec().resources().device());
  const int ranks = RankCount(*Job(number));
  std::string detail;
  if (blocker != 0) {
    detail = absl::StrCat(ahead, ahead == 1 ? " job is" : " jobs are", " ahead in the queue; ",
                          JobName(blocker), " is next");
  } else {
    int ready = 0;
    int slots = 0;
    auto count = [&](const v1::WorkerRecord& record) {
      if (record.worker().state() != v1::WORKER_STATE_READY || record.leaving()) return;
      ++ready;
      slots += record.worker().slots_size();
    };
    for (const auto& [name, record] : state_.workers()) count(*Worker(name));
    for (const auto& [name, record] : outcome_.workers) {
      if (state_.FindWorker(name) == nullptr) count(record);
    }
    detail = absl::StrCat("needs ", ranks, " free ", device, " slot", ranks == 1 ? "" : "s", "; ",
                          free, " of ", slots, " on ", ready, " ready worker",
                          ready == 1 ? "" : "s", ready == 1 ? " is free" : " are free");
    if (slots < ranks) {
      absl::StrAppend(&detail, ": start workers with ", ranks - slots, " more");
    }
  }
  const bool leaving = job.reason() == v1::JOB_REASON_WORKER_LEAVING;
  const v1::JobReason reason = leaving ? job.reason() : v1::JOB_REASON_WAITING_FOR_SLOTS;
  if (job.reason() == reason && job.reason_detail() == detail) return;
  v1::Job* changed = ChangeSoft(number).mutable_job();
  changed->set_reason(reason);
  changed->set_reason_detail(detail);
}

}  // namespace milepost::coordinator
