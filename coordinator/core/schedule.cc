// The queue: strictly first come, first served.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/proto_time.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

namespace {

constexpr double kBytesPerGiB = 1 << 30;

int RankCount(const v1::JobRecord& record) {
  return std::max(1, record.job().spec().resources().ranks());
}

bool TakesRanks(const v1::WorkerRecord& record) {
  return record.worker().state() == v1::WORKER_STATE_READY && !record.leaving();
}

// Why nothing can run in the slot; empty: it can be used.
std::string ProblemOf(const v1::Worker& worker, const v1::Slot& slot) {
  for (const v1::DeviceFacts& facts : worker.devices()) {
    if (facts.slot() == slot.index()) return facts.problem();
  }
  return "";
}

// What a slot tells nothing of may be there.
bool HasRoom(const v1::Slot& slot, const v1::JobRecord& record) {
  return slot.memory_bytes() == 0 || slot.memory_bytes() >= record.slot_bytes();
}

}  // namespace

std::vector<const v1::WorkerRecord*> Transition::ReadyWorkers() const {
  std::vector<const v1::WorkerRecord*> ready;
  for (const auto& [name, record] : state_.workers()) {
    if (TakesRanks(*Worker(name))) ready.push_back(Worker(name));
  }
  for (const auto& [name, record] : outcome_.workers) {
    if (state_.FindWorker(name) == nullptr && TakesRanks(record)) ready.push_back(&record);
  }
  return ready;
}

FreeByModel Transition::FindFreeSlots(v1::DeviceKind device) const {
  std::set<std::pair<std::string, int>> taken;
  for (int64_t number : ActiveJobs()) {
    for (const v1::RankRecord& rank : Job(number)->ranks()) {
      if (!rank.gone()) taken.emplace(rank.worker(), rank.slot());
    }
  }
  FreeByModel free;
  for (const v1::WorkerRecord* record : ReadyWorkers()) {
    const v1::Worker& worker = record->worker();
    for (const v1::RankPlacementOfJob& stale : record->stale()) {
      taken.emplace(worker.name(), stale.slot());
    }
    for (const v1::Slot& slot : worker.slots()) {
      const bool usable = slot.device() == device && ProblemOf(worker, slot).empty();
      if (!usable || taken.contains({worker.name(), slot.index()})) continue;
      free[slot.model()][worker.name()].push_back(slot.index());
    }
  }
  for (auto& [model, workers] : free) {
    for (auto& [name, slots] : workers) std::sort(slots.begin(), slots.end());
  }
  return free;
}

FreeByModel Transition::LargeEnough(const v1::JobRecord& record, FreeByModel free) const {
  if (record.slot_bytes() == 0) return free;
  for (auto& [model, workers] : free) {
    for (auto& [name, indices] : workers) {
      for (const v1::Slot& slot : Worker(name)->worker().slots()) {
        if (!HasRoom(slot, record)) std::erase(indices, slot.index());
      }
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
  std::map<v1::DeviceKind, FreeByModel> free_by_device;
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
    FreeByModel usable = LargeEnough(record, entry->second);
    const std::map<std::string, int> free = CountSlots(usable);
    std::vector<PlacedRank> placed;
    if (can_place) placed = TakeSlots(RankCount(record), &usable);
    RemoveSlots(placed, &entry->second);
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

SlotSupply Transition::CountSupply(const v1::JobRecord& job) const {
  const v1::DeviceKind device = job.job().spec().resources().device();
  SlotSupply supply;
  int too_small = 0;
  for (const v1::WorkerRecord* record : ReadyWorkers()) {
    const v1::Worker& worker = record->worker();
    ++supply.ready_workers;
    for (const v1::Slot& slot : worker.slots()) {
      const std::string problem = ProblemOf(worker, slot);
      if (problem.empty()) ++supply.by_kind[slot.device()];
      if (slot.device() != device) continue;
      if (problem.empty()) {
        HasRoom(slot, job) ? ++supply.by_model[slot.model()] : ++too_small;
      } else {
        supply.missing.push_back(
            absl::StrCat("slot ", slot.index(), " of ", worker.name(), " is out: ", problem));
      }
    }
    if (device == v1::DEVICE_KIND_CUDA && !worker.device_note().empty()) {
      supply.missing.push_back(absl::StrCat(worker.name(), ": ", worker.device_note()));
    }
  }
  if (too_small > 0) {
    supply.missing.insert(supply.missing.begin(),
                          absl::StrFormat("%d %s less than the %.1f GiB that a rank needs",
                                          too_small, too_small == 1 ? "has" : "have",
                                          static_cast<double>(job.slot_bytes()) / kBytesPerGiB));
  }
  return supply;
}

void Transition::ExplainWait(int64_t number, const std::map<std::string, int>& free, int ahead,
                             int64_t blocker) {
  const v1::Job& job = Job(number)->job();
  std::string detail;
  if (blocker != 0) {
    detail = absl::StrCat(ahead, ahead == 1 ? " job is" : " jobs are", " ahead in the queue; ",
                          JobName(blocker), " is next");
  } else {
    const v1::DeviceKind device = job.spec().resources().device();
    SlotSupply supply = CountSupply(*Job(number));
    supply.free_by_model = free;
    detail = WaitReason(RankCount(*Job(number)), device, supply);
  }
  const bool leaving = job.reason() == v1::JOB_REASON_WORKER_LEAVING;
  const v1::JobReason reason = leaving ? job.reason() : v1::JOB_REASON_WAITING_FOR_SLOTS;
  if (job.reason() == reason && job.reason_detail() == detail) return;
  v1::Job* changed = ChangeSoft(number).mutable_job();
  changed->set_reason(reason);
  changed->set_reason_detail(detail);
}

}  // namespace milepost::coordinator
