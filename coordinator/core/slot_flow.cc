// Makes the input of a scheduling pass of the state, and changes of its result.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/proto_time.h"
#include "common/spec/sizes.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/transition.h"
#include "coordinator/core/wait_reason.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostMissing = 4;
constexpr size_t kMostAbsent = 4;
// In a row, without progress: by then the cause may be a host that no failure names.
constexpr int kFailuresToMove = 2;
constexpr char kRackLabel[] = "rack";

bool TakesRanks(const v1::WorkerRecord& record) {
  return record.worker().state() == v1::WORKER_STATE_READY && !record.leaving() &&
         !record.worker().has_exclusion();
}

// Its stream is lost, its lease is not: it may take ranks again at any moment.
bool IsAway(const v1::WorkerRecord& record) {
  return record.worker().state() == v1::WORKER_STATE_DISCONNECTED && !record.leaving() &&
         !record.worker().has_drain() && !record.worker().has_exclusion();
}

// It would take ranks if nobody had drained it.
bool IsDrainedAlone(const v1::WorkerRecord& record) {
  return record.worker().has_drain() && IsConnected(record.worker()) && !record.leaving() &&
         !record.worker().has_exclusion();
}

// Why nothing can run in the slot; empty: it can be used.
const std::string& ProblemOf(const v1::Worker& worker, int slot) {
  static const auto* const kNone = new std::string;
  for (const v1::DeviceFacts& facts : worker.devices()) {
    if (facts.slot() == slot) return facts.problem();
  }
  return *kNone;
}

// Its attempt ends, and the job wants its slots back.
bool ComesBack(const v1::JobRecord& record) {
  return record.ending() == v1::ATTEMPT_ENDING_FAILED ||
         record.ending() == v1::ATTEMPT_ENDING_REQUEUE ||
         record.ending() == v1::ATTEMPT_ENDING_RESIZE ||
         record.ending() == v1::ATTEMPT_ENDING_PREEMPT;
}

std::vector<GangSize> SizesAbove(const v1::JobRecord& record, int ranks) {
  std::vector<GangSize> sizes;
  for (const v1::JobSize& size : record.sizes()) {
    if (size.ranks() > ranks) sizes.push_back({size.ranks(), size.slot_bytes()});
  }
  return sizes;
}

Admission AdmissionOf(const v1::JobRecord& record) {
  if (!record.ranks().empty()) {
    return record.ending() == v1::ATTEMPT_ENDING_PREEMPT ? Admission::kNone : Admission::kHeld;
  }
  switch (record.admission()) {
    case v1::ADMISSION_HELD:
      return Admission::kHeld;
    case v1::ADMISSION_GRANTED:
      return Admission::kGranted;
    default:
      return Admission::kNone;
  }
}

// The state as one scheduling pass sees it, for all kinds of devices at once.
class Inputs {
 public:
  Inputs(const State& state, absl::Time now, const Config& config)
      : state_(state), now_(now), config_(config) {
    AddQueue(kDefaultQueue);
    for (const auto& [id, record] : state.queues()) AddQueue(id);
    for (const int64_t number : state.active()) AddJob(number, *state.FindJob(number));
    for (const auto& [name, record] : state.workers()) AddWorker(record);
  }

  std::map<v1::DeviceKind, ScheduleInput> Take() && {
    for (auto& [device, input] : inputs_) {
      input.summary.ready_workers = ready_workers_;
      input.summary.usable = usable_;
      if (device == v1::DEVICE_KIND_CUDA) AddMissing(notes_, input.summary);
    }
    return std::move(inputs_);
  }

 private:
  using SlotNumbers = absl::InlinedVector<int, 8>;

  void AddQueue(const std::string& id) {
    if (queue_index_.try_emplace(id, static_cast<int>(queue_ids_.size())).second) {
      queue_ids_.push_back(id);
    }
  }

  // A kind of device is looked at when a job wants it.
  ScheduleInput& InputFor(v1::DeviceKind device) {
    auto [entry, added] = inputs_.try_emplace(device);
    ScheduleInput& input = entry->second;
    if (!added) return input;
    input.now = now_;
    input.graceful_stop = config_.graceful_stop;
    for (const std::string& id : queue_ids_) {
      QueueShare share = {.name = id};
      if (const v1::QueueRecord* record = state_.FindQueue(id); record != nullptr) {
        if (record->queue().has_weight()) share.weight = record->queue().weight();
        for (const v1::SlotQuota& quota : record->queue().quotas()) {
          if (quota.device() != device) continue;
          share.guaranteed = quota.guaranteed();
          if (quota.has_limit()) share.limit = quota.limit();
        }
      }
      input.queues.push_back(std::move(share));
    }
    return input;
  }

  int QueueOf(const v1::Job& job) const {
    const auto found = queue_index_.find(job.spec().scheduling().queue());
    return found == queue_index_.end() ? queue_index_.at(kDefaultQueue) : found->second;
  }

  void AddJob(int64_t number, const v1::JobRecord& record) {
    const v1::Job& job = record.job();
    ScheduleInput& input = InputFor(job.spec().resources().device());
    QueueShare& share = input.queues[QueueOf(job)];
    const bool waits =
        job.state() == v1::JOB_STATE_QUEUED || job.state() == v1::JOB_STATE_RECOVERING;
    const bool wants = record.ranks().empty() ? waits : ComesBack(record);
    const int held = record.ranks().empty() ? 0 : AddHolding(number, record, input);
    const bool admitted = wants && AdmissionOf(record) != Admission::kNone;
    const int counted =
        admitted ? std::max({held, LeastRanksOf(record), record.wanted_ranks()}) : held;
    share.used += counted;
    const int array = IndexOfArray(job, input);
    if (array >= 0 && counted > 0) ++input.arrays[array].running;
    if (!admitted && record.ending() != v1::ATTEMPT_ENDING_NONE) share.leaving += held;
    if (!wants) return;
    input.demands.push_back(DemandOf(number, record));
    input.demands.back().counted = counted;
    input.demands.back().array = array;
  }

  // -1: any number of its jobs may run. All jobs of an array want one kind of device.
  int IndexOfArray(const v1::Job& job, ScheduleInput& input) {
    if (job.array().max_parallel() <= 0) return -1;
    const auto [found, added] =
        arrays_.try_emplace(job.array().name(), static_cast<int>(input.arrays.size()));
    if (added) input.arrays.push_back({.max_parallel = job.array().max_parallel()});
    return found->second;
  }

  int AddHolding(int64_t number, const v1::JobRecord& record, ScheduleInput& input) {
    Holding holding;
    holding.job = number;
    holding.queue = QueueOf(record.job());
    holding.priority = record.job().spec().scheduling().priority();
    holding.start = FromProto(record.attempt_start_time());
    holding.release = TimeLimitEnd(record) + config_.graceful_stop;
    holding.leaving = record.ending() != v1::ATTEMPT_ENDING_NONE;
    holding.leaves_for = JobNumber(record.leaves_for());
    if (holding.leaving) {
      const absl::Time end = IsSet(record.stop_deadline()) ? FromProto(record.stop_deadline())
                                                           : now_ + config_.graceful_stop;
      holding.release = std::min(holding.release, end);
    }
    // Ranks of one worker follow each other, as a rule.
    const std::string* name = nullptr;
    const v1::WorkerRecord* worker = nullptr;
    const std::string* pool = nullptr;
    SlotNumbers* taken = nullptr;
    for (const v1::RankRecord& rank : record.ranks()) {
      if (rank.gone()) continue;
      if (name == nullptr || *name != rank.worker()) {
        name = &rank.worker();
        worker = state_.FindWorker(*name);
        if (worker != nullptr) pool = &PoolOf(worker->worker());
        taken = &taken_[*name];
      }
      taken->push_back(rank.slot());
      ++holding.held;
      if (worker == nullptr) continue;
      for (const v1::Slot& slot : worker->worker().slots()) {
        if (slot.index() != rank.slot()) continue;
        if (holding.held == 1) holding.slot_class = {*pool, slot.model()};
        // A worker may have come back with another label while its ranks leave.
        const bool comes_back =
            (TakesRanks(*worker) || IsAway(*worker)) && *pool == holding.slot_class.pool;
        if (comes_back && ProblemOf(worker->worker(), slot.index()).empty()) {
          holding.slots.Add(slot.memory_bytes(), 1);
        }
      }
    }
    const int held = holding.held;
    const bool settled = !IsSet(record.resize_after()) || FromProto(record.resize_after()) <= now_;
    const bool runs =
        std::all_of(record.ranks().begin(), record.ranks().end(), [](const v1::RankRecord& rank) {
          return !rank.gone() && rank.state() == v1::RANK_STATE_RUNNING;
        });
    if (!holding.leaving && settled && runs) {
      holding.larger = SizesAbove(record, record.ranks_size());
    }
    input.holdings.push_back(std::move(holding));
    return held;
  }

  Demand DemandOf(int64_t number, const v1::JobRecord& record) const {
    const v1::Job& job = record.job();
    const v1::SchedulingSpec& scheduling = job.spec().scheduling();
    Demand demand = {.job = number,
                     .queue = QueueOf(job),
                     .priority = scheduling.priority(),
                     .order = record.queue_order(),
                     .ranks = LeastRanksOf(record),
                     .slot_bytes = record.slot_bytes(),
                     .usual = std::max(job.spec().resources().ranks(), record.wanted_ranks()),
                     .wanted = std::max(record.ranks_size(), record.wanted_ranks()),
                     .pool = job.spec().resources().pool(),
                     .device_model = job.spec().resources().device_model(),
                     .admission = AdmissionOf(record),
                     .winding_up = !record.ranks().empty()};
    demand.islands = Islands(record.job().spec());
    demand.last_workers.assign(record.last_workers().begin(), record.last_workers().end());
    // Once it may be anything, and what these hosts keep in memory makes the next start cheap.
    demand.elsewhere = job.state() == v1::JOB_STATE_RECOVERING && job.failures() >= kFailuresToMove;
    if (record.sizes_size() > 0) {
      demand.slot_bytes = record.sizes(0).slot_bytes();
      demand.larger = SizesAbove(record, demand.ranks);
    }
    if (scheduling.time_limit() > 0) {
      demand.time_limit = absl::Seconds(scheduling.time_limit() - record.held_before());
    }
    if (IsSet(job.next_attempt_time())) demand.not_before = FromProto(job.next_attempt_time());
    for (const std::string& name : scheduling.depends_on()) {
      const v1::JobRecord* other = state_.FindJob(JobNumber(name));
      if (other == nullptr || other->job().state() == v1::JOB_STATE_SUCCEEDED) continue;
      const bool ended = IsTerminal(other->job().state());
      if (demand.gate == WaitCode::kNone || ended) demand.gate_job = JobNumber(name);
      if (ended) demand.gate = WaitCode::kFailedDependency;
      if (demand.gate == WaitCode::kNone) demand.gate = WaitCode::kDependency;
    }
    return demand;
  }

  void AddWorker(const v1::WorkerRecord& record) {
    const bool away = IsAway(record);
    const v1::Worker& worker = record.worker();
    if (worker.has_exclusion() && IsConnected(worker)) AddExcluded(worker);
    if (IsDrainedAlone(record)) AddDrained(worker);
    if (worker.state() == v1::WORKER_STATE_DOWN) AddDown(worker);
    if (!TakesRanks(record) && !away) return;
    if (!away) ++ready_workers_;
    if (!away && !worker.device_note().empty()) {
      notes_.push_back(absl::StrCat(worker.name(), ": ", worker.device_note()));
    }
    SlotNumbers taken;
    if (auto found = taken_.find(worker.name()); found != taken_.end()) {
      taken = std::move(found->second);
    }
    for (const v1::RankPlacementOfJob& stale : record.stale()) taken.push_back(stale.slot());
    std::sort(taken.begin(), taken.end());
    // A host has slots of one model, as a rule.
    absl::InlinedVector<HostOfModel, 1> hosts;
    for (const v1::Slot& slot : worker.slots()) {
      const std::string& problem = ProblemOf(worker, slot.index());
      if (!problem.empty()) {
        AddOut(worker, slot, problem);
        continue;
      }
      if (!away) ++usable_[slot.device()];
      if (!inputs_.contains(slot.device())) continue;
      const bool free = !std::binary_search(taken.begin(), taken.end(), slot.index());
      HostFor(slot, worker.slots_size(), hosts)
          .slots.push_back({slot.index(), slot.memory_bytes(), free});
    }
    const auto rack = worker.labels().find(kRackLabel);
    for (auto& [slot, pool_host] : hosts) {
      pool_host.worker = worker.name();
      pool_host.away = away;
      if (rack != worker.labels().end()) pool_host.rack = rack->second;
      pool_host.avoided = IsAvoided(record, now_ - config_.avoid_after_failure);
      std::sort(pool_host.slots.begin(), pool_host.slots.end(),
                [](const PoolSlot& a, const PoolSlot& b) { return a.index < b.index; });
      SlotPools& pools = inputs_.at(slot->device()).pools;
      const SlotClass slot_class = {PoolOf(worker), slot->model()};
      pools.try_emplace(slot_class, slot_class).first->second.AddHost(std::move(pool_host));
    }
  }

  struct HostOfModel {
    const v1::Slot* slot;  // one of them
    PoolHost host;
  };
  static PoolHost& HostFor(const v1::Slot& slot, int slots,
                           absl::InlinedVector<HostOfModel, 1>& hosts) {
    for (HostOfModel& one : hosts) {
      const bool same = one.slot->device() == slot.device() && one.slot->model() == slot.model();
      if (same) return one.host;
    }
    hosts.push_back({&slot, {}});
    hosts.back().host.slots.reserve(slots);
    return hosts.back().host;
  }

  void AddExcluded(const v1::Worker& worker) {
    std::set<v1::DeviceKind> kinds;
    for (const v1::Slot& slot : worker.slots()) kinds.insert(slot.device());
    const v1::Exclusion& exclusion = worker.exclusion();
    std::string reason = absl::StrCat(
        worker.name(), " is excluded until it passes a health check: ", exclusion.reason());
    if (!exclusion.problem().empty()) {
      absl::StrAppend(&reason, "; the last one found: ", exclusion.problem(), "; the next is at ",
                      TimeText(FromProto(exclusion.next_check_time())));
    }
    absl::StrAppend(&reason, "; `milepost worker resume ", worker.name(),
                    "` takes it back without one");
    for (const v1::DeviceKind kind : kinds) {
      auto input = inputs_.find(kind);
      if (input != inputs_.end()) AddMissing({reason}, input->second.summary);
    }
  }

  using KindAndModel = std::pair<v1::DeviceKind, std::string>;
  static std::map<KindAndModel, SlotCounts> SlotsInOrder(const v1::Worker& worker) {
    std::map<KindAndModel, SlotCounts> slots;
    for (const v1::Slot& slot : worker.slots()) {
      if (!ProblemOf(worker, slot.index()).empty()) continue;
      slots[{slot.device(), slot.model()}].Add(slot.memory_bytes(), 1);
    }
    return slots;
  }

  void AddDrained(const v1::Worker& worker) {
    for (const v1::Slot& slot : worker.slots()) {
      const std::string& problem = ProblemOf(worker, slot.index());
      if (!problem.empty()) AddOut(worker, slot, problem);
    }
    const v1::Drain& drain = worker.drain();
    for (const auto& [kind, counts] : SlotsInOrder(worker)) {
      const auto input = inputs_.find(kind.first);
      if (input == inputs_.end()) continue;
      AbsentHosts& hosts = input->second.summary.drained[{PoolOf(worker), kind.second}];
      if (++hosts.in_all > static_cast<int>(kMostAbsent)) continue;
      hosts.some.push_back(
          {worker.name(), counts, FromProto(drain.request_time()), drain.reason(), drain.spot()});
    }
  }

  // Who went last comes back first, as a rule.
  void AddDown(const v1::Worker& worker) {
    const absl::Time since = FromProto(worker.lease_expire_time());
    for (const auto& [kind, counts] : SlotsInOrder(worker)) {
      const auto input = inputs_.find(kind.first);
      if (input == inputs_.end()) continue;
      AbsentHosts& hosts = input->second.summary.down[{PoolOf(worker), kind.second}];
      ++hosts.in_all;
      const auto at = std::find_if(hosts.some.begin(), hosts.some.end(),
                                   [&](const AbsentHost& other) { return other.since < since; });
      if (at == hosts.some.end() && hosts.some.size() == kMostAbsent) continue;
      hosts.some.insert(at, {.worker = worker.name(), .slots = counts, .since = since});
      if (hosts.some.size() > kMostAbsent) hosts.some.pop_back();
    }
  }

  void AddOut(const v1::Worker& worker, const v1::Slot& slot, const std::string& problem) {
    auto input = inputs_.find(slot.device());
    if (input == inputs_.end()) return;
    AddMissing({absl::StrCat("slot ", slot.index(), " of ", worker.name(), " is out: ", problem)},
               input->second.summary);
  }

  static void AddMissing(const std::vector<std::string>& reasons, ClusterSummary& summary) {
    for (const std::string& reason : reasons) {
      ++summary.missing_in_all;
      if (summary.missing.size() < kMostMissing) summary.missing.push_back(reason);
    }
  }

  const State& state_;
  const absl::Time now_;
  const Config& config_;
  std::vector<std::string> queue_ids_;
  absl::flat_hash_map<std::string, int> queue_index_;
  std::map<v1::DeviceKind, ScheduleInput> inputs_;
  absl::flat_hash_map<absl::string_view, SlotNumbers> taken_;  // by worker, as the state names it
  absl::flat_hash_map<std::string, int> arrays_;               // index into their kind of device's
  std::map<v1::DeviceKind, int> usable_;
  std::vector<std::string> notes_;
  int ready_workers_ = 0;
};

}  // namespace

void Transition::Follow(const coordinator::Schedule& schedule) {
  for (const int64_t number : schedule.no_longer_admitted) {
    Change(number).set_admission(v1::ADMISSION_NONE);
  }
  for (const coordinator::Schedule::Start& start : schedule.starts) {
    StartAttempt(start.job, start.placed);
  }
  for (const coordinator::Schedule::Preemption& preemption : schedule.preemptions) {
    Preempt(preemption.victim, preemption.winner);
  }
  for (const coordinator::Schedule::Resize& resize : schedule.resizes) {
    Resize(resize.job, resize.ranks);
  }
}

void Transition::Schedule() {
  auto view = std::make_shared<QueueView>();
  for (auto& [device, input] : Inputs(state_, now_, config_).Take()) {
    coordinator::Schedule schedule = PlanSchedule(std::move(input));
    Follow(schedule);
    ClearBackoffs(schedule.view);
    view->kinds[device] = std::move(schedule.view);
  }
  outcome_.view = std::move(view);
}

void Transition::Resize(int64_t number, int ranks) {
  const int now = Job(number)->ranks_size();
  Change(number).set_wanted_ranks(ranks);
  BeginEnding(number, v1::ATTEMPT_ENDING_RESIZE, v1::JOB_REASON_RESIZED,
              absl::StrCat("goes on with ", ranks, " ranks instead of ", now,
                           ", as slots are free: its ranks checkpoint and start again"));
  Settle(number);
}

void Transition::Preempt(int64_t victim, int64_t winner) {
  Change(winner).set_admission(v1::ADMISSION_GRANTED);
  BeginEnding(victim, v1::ATTEMPT_ENDING_PREEMPT, v1::JOB_REASON_PREEMPTED,
              absl::StrCat("makes room for ", JobName(winner), ": its ranks checkpoint and leave"));
  Change(victim).set_leaves_for(JobName(winner));
  Settle(victim);
}

// A time that has come is not waited for again.
void Transition::ClearBackoffs(const KindView& view) {
  for (const int64_t number : state_.timed()) {
    const v1::JobRecord& record = *Job(number);
    const v1::Job& job = record.job();
    if (IsSet(record.resize_after()) && FromProto(record.resize_after()) <= now_) {
      ChangeSoft(number).clear_resize_after();
    }
    if (!record.ranks().empty() || !IsSet(job.next_attempt_time())) continue;
    if (FromProto(job.next_attempt_time()) > now_ || !view.waiting.contains(number)) continue;
    ChangeSoft(number).mutable_job()->clear_next_attempt_time();
  }
}

}  // namespace milepost::coordinator
