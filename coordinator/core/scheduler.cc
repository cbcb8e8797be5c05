#include "coordinator/core/scheduler.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/fair_share.h"
#include "coordinator/core/preemption.h"
#include "coordinator/core/reservation.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostHolders = 3;

using Pools = absl::InlinedVector<SlotPool*, 4>;

int CountHosts(const std::vector<PlacedRank>& placed) {
  std::set<absl::string_view> hosts;
  for (const PlacedRank& rank : placed) hosts.insert(rank.worker);
  return static_cast<int>(hosts.size());
}

int CountOn(const std::vector<PlacedRank>& placed, const std::vector<std::string>& workers) {
  return static_cast<int>(std::count_if(placed.begin(), placed.end(), [&](const PlacedRank& rank) {
    return std::find(workers.begin(), workers.end(), rank.worker) != workers.end();
  }));
}

class Pass {
 public:
  explicit Pass(ScheduleInput input) : input_(std::move(input)), reserved_(input_.now) {}

  Schedule Run() {
    SortDemands();
    for (const Holding& holding : input_.holdings) {
      if (holding.leaving) comes_free_[holding.slot_class].Add(holding.slots);
    }
    CountWanting();
    Admitted();
    Queues();
    Grow();
    Summarize();
    return std::move(schedule_);
  }

 private:
  // Only elastic jobs care.
  void CountWanting() {
    const bool elastic = std::any_of(input_.demands.begin(), input_.demands.end(),
                                     [](const Demand& demand) { return !demand.larger.empty(); });
    if (!elastic) return;
    for (Demand& demand : input_.demands) {
      DropSizesNobodyHas(demand);
      wanting_ += demand.gate == WaitCode::kNone && !ArrayIsFull(demand) &&
                  !EligiblePools(demand).empty() &&
                  demand.ranks <= input_.queues[demand.queue].limit;
    }
  }

  // Of every queue the jobs in the order in which they are looked at.
  void SortDemands() {
    std::sort(input_.demands.begin(), input_.demands.end(), [](const Demand& a, const Demand& b) {
      return std::make_tuple(a.queue, -a.priority, a.order, a.job) <
             std::make_tuple(b.queue, -b.priority, b.order, b.job);
    });
  }

  void Queues() {
    std::vector<std::vector<Demand*>> lines(input_.queues.size());
    for (Demand& demand : input_.demands) {
      if (demand.admission == Admission::kNone) lines[demand.queue].push_back(&demand);
    }
    limit_blockers_.assign(input_.queues.size(), 0);
    victims_ = OrderVictims(input_.holdings);
    lowest_priority_.assign(input_.queues.size(), std::numeric_limits<int>::max());
    for (const Holding& holding : input_.holdings) {
      int& lowest = lowest_priority_[holding.queue];
      if (!holding.leaving && !holding.stays) lowest = std::min(lowest, holding.priority);
    }
    std::vector<size_t> next(lines.size(), 0);
    FairShare order(&input_.queues);
    for (size_t q = 0; q < lines.size(); ++q) {
      if (!lines[q].empty()) order.Put(static_cast<int>(q));
    }
    while (order.Any()) {
      const int queue = order.Next();
      Examine(*lines[queue][next[queue]++]);
      if (next[queue] < lines[queue].size()) order.Put(queue);
    }
  }

  // Slots that were made free for a job are its own before anybody who recovers reserves some.
  void Admitted() {
    for (const Admission admission : {Admission::kGranted, Admission::kHeld}) {
      for (Demand& demand : input_.demands) {
        if (demand.admission == admission) ExamineAdmitted(demand);
      }
    }
  }

  void ExamineAdmitted(Demand& demand) {
    const Pools pools = EligiblePools(demand);
    const bool due = demand.not_before <= input_.now;
    const bool allowed = demand.gate == WaitCode::kNone && WithinLimit(demand);
    if (allowed && !demand.winding_up && TryStart(demand, pools)) return;
    const bool granted = demand.admission == Admission::kGranted;
    const bool keeps = granted ? RoomIsMadeFor(demand) : demand.winding_up || !due;
    if (!keeps) return Readmit(demand);
    // What it cannot have it does not keep from others.
    if (allowed) ReserveWanted(demand);
    Wait(demand, granted ? WaitCode::kRoomIsMade : WaitCode::kBackingOff, 0);
  }

  // As many slots as it had, where there are so many.
  void ReserveWanted(Demand demand) {
    for (auto size = demand.larger.rbegin(); size != demand.larger.rend(); ++size) {
      if (size->ranks > demand.wanted) continue;
      Demand larger = demand;
      larger.ranks = size->ranks;
      larger.slot_bytes = size->slot_bytes;
      const Pools pools = EligiblePools(larger);
      if (!pools.empty()) return void(reserved_.Add(larger, pools, input_.holdings));
    }
    const Pools pools = EligiblePools(demand);
    if (!pools.empty()) reserved_.Add(demand, pools, input_.holdings);
  }

  // The smallest needs the most of each slot: where none is large enough, the next one is the
  // least.
  void DropSizesNobodyHas(Demand& demand) {
    while (!demand.larger.empty() && EligiblePools(demand).empty()) {
      const GangSize next = demand.larger.front();
      Demand larger = demand;
      larger.larger.erase(larger.larger.begin());
      larger.ranks = next.ranks;
      larger.slot_bytes = next.slot_bytes;
      if (EligiblePools(larger).empty() && larger.larger.empty()) return;
      demand = std::move(larger);
    }
  }

  // It waits like all others from now on.
  void Readmit(Demand& demand) {
    input_.queues[demand.queue].used -= demand.counted;
    if (demand.array >= 0 && demand.counted > 0) --input_.arrays[demand.array].running;
    demand.counted = 0;
    demand.admission = Admission::kNone;
    schedule_.no_longer_admitted.push_back(demand.job);
  }

  bool RoomIsMadeFor(const Demand& demand) const {
    return std::any_of(input_.holdings.begin(), input_.holdings.end(), [&](const Holding& holding) {
      return holding.leaving && holding.held > 0 && holding.leaves_for == demand.job;
    });
  }

  void Examine(Demand& demand) {
    if (demand.gate != WaitCode::kNone) return Wait(demand, demand.gate, demand.gate_job);
    if (ArrayIsFull(demand)) return Wait(demand, WaitCode::kArrayLimit, 0);
    const Pools pools = EligiblePools(demand);
    if (pools.empty()) return Wait(demand, WaitCode::kTooFewSlots, 0);
    const QueueShare& queue = input_.queues[demand.queue];
    if (demand.ranks > queue.limit) return Wait(demand, WaitCode::kTooFarLimit, 0);
    int64_t& blocker = limit_blockers_[demand.queue];
    if (blocker != 0) return Wait(demand, WaitCode::kTurn, blocker);
    const bool first = head_ == 0;
    if (!demand.winding_up) {
      if (WithinLimit(demand) && TryStart(demand, pools)) return;
      if (MakeRoom(demand, pools, first)) return Wait(demand, WaitCode::kRoomIsMade, 0);
    }
    if (!WithinLimit(demand)) {
      blocker = demand.job;
      return Wait(demand, WaitCode::kLimit, 0);
    }
    if (!first) return Wait(demand, WaitCode::kTurn, head_);
    head_ = demand.job;
    const absl::Time start = reserved_.Add(demand, pools, input_.holdings);
    Wait(demand, WaitCode::kSlots, 0);
    TellOfHead(demand, pools, start);
  }

  // The pools that could hold it if all their slots were free.
  Pools EligiblePools(const Demand& demand) {
    Pools pools;
    for (auto& [slot_class, pool] : input_.pools) {
      if (!IsPool(slot_class.pool, demand.pool)) continue;
      const bool wanted =
          demand.device_model.empty() || IsModel(slot_class.model, demand.device_model);
      if (wanted && pool.CountUsable(demand.slot_bytes) >= demand.ranks) pools.push_back(&pool);
    }
    return pools;
  }

  bool ArrayIsFull(const Demand& demand) const {
    if (demand.array < 0 || demand.counted > 0) return false;
    const ArrayShare& array = input_.arrays[demand.array];
    return array.running >= array.max_parallel;
  }

  void CountInArray(const Demand& demand) {
    if (demand.array >= 0 && demand.counted == 0) ++input_.arrays[demand.array].running;
  }

  bool WithinLimit(const Demand& demand) const {
    const QueueShare& queue = input_.queues[demand.queue];
    return queue.used + std::max(0, demand.ranks - demand.counted) <= queue.limit;
  }

  absl::Time ReleaseOf(const Demand& demand) const {
    return input_.now + demand.time_limit + input_.graceful_stop;
  }

  bool TryStart(const Demand& demand, const Pools& pools) {
    const QueueShare& queue = input_.queues[demand.queue];
    for (auto size = demand.larger.rbegin(); size != demand.larger.rend(); ++size) {
      if (size->ranks > demand.usual && wanting_ > 1) continue;
      if (queue.used + size->ranks - demand.counted > queue.limit) continue;
      if (TryStart(demand, *size, pools)) return true;
    }
    return TryStart(demand, {demand.ranks, demand.slot_bytes}, pools);
  }

  static std::vector<PlacedRank> FindIn(const Demand& demand, const GangSize& size,
                                        SlotPool& pool) {
    const std::vector<std::string>& last = demand.last_workers;
    if (demand.islands > 1 && size.ranks % demand.islands == 0) {
      return pool.FindGroups(demand.islands, size.ranks, size.slot_bytes, last, demand.elsewhere);
    }
    return demand.elsewhere ? pool.FindElsewhere(size.ranks, size.slot_bytes, last)
                            : pool.Find(size.ranks, size.slot_bytes, last);
  }

  // Of the pools where it fits and delays nobody: the one where it takes the fewest hosts, then the
  // one with the fewest free slots; before that, where it is to go elsewhere, the one where it
  // takes the fewest slots of the hosts that it had. One that backs off keeps the slots for itself.
  bool TryStart(const Demand& demand, const GangSize& size, const Pools& pools) {
    const absl::Time release = ReleaseOf(demand);
    std::tuple<int, int, int> best_key;
    SlotPool* best = nullptr;
    std::vector<PlacedRank> placed;
    for (SlotPool* pool : pools) {
      const int free = pool->CountFree(size.slot_bytes);
      if (free < size.ranks || reserved_.Delays(pool->slot_class(), size.ranks, release)) continue;
      std::vector<PlacedRank> found = FindIn(demand, size, *pool);
      const int again = demand.elsewhere ? CountOn(found, demand.last_workers) : 0;
      const std::tuple<int, int, int> key = {again, CountHosts(found), free};
      if (best != nullptr && key >= best_key) continue;
      best = pool;
      best_key = key;
      placed = std::move(found);
    }
    if (best == nullptr) return false;
    const SlotCounts taken = best->Take(placed);
    reserved_.Lend(best->slot_class(), size.ranks, release);
    CountInArray(demand);
    input_.queues[demand.queue].used += size.ranks - demand.counted;
    input_.holdings.push_back({.job = demand.job,
                               .queue = demand.queue,
                               .priority = demand.priority,
                               .slot_class = best->slot_class(),
                               .slots = taken,
                               .held = size.ranks,
                               .start = input_.now,
                               .release = release,
                               .stays = true});
    if (demand.not_before > input_.now) {
      Wait(demand, WaitCode::kBackingOff, 0);
    } else {
      schedule_.starts.push_back({demand.job, std::move(placed)});
    }
    return true;
  }

  // Without a look at who could: nobody has a lower priority, or what is asked for is no less than
  // what a job like it, of no lower priority, did not get.
  bool CannotMakeRoom(const Demand& demand) const {
    const auto hopeless = hopeless_.find(KindOf(demand));
    if (hopeless != hopeless_.end() && demand.ranks >= hopeless->second) return true;
    const QueueShare& own = input_.queues[demand.queue];
    const bool takes_back = own.used + demand.ranks <= own.guaranteed;
    return !takes_back && lowest_priority_[demand.queue] >= demand.priority;
  }

  // Views of the demand.
  using DemandKind = std::tuple<int, absl::string_view, absl::string_view, int64_t>;
  static DemandKind KindOf(const Demand& demand) {
    return {demand.queue, demand.pool, demand.device_model, demand.slot_bytes};
  }

  // Tells the fewest others to leave. The job at the head counts with all that is free; one behind
  // it only with what its victims hold, and only if it gives that back no later than they would
  // have.
  bool MakeRoom(Demand& demand, const Pools& pools, bool first) {
    if (CannotMakeRoom(demand)) return false;
    const QueueShare& queue = input_.queues[demand.queue];
    std::vector<int> best;
    int best_slots = 0;
    for (const SlotPool* pool : pools) {
      SlotCounts comes = pool->free();
      comes.Add(pool->away());
      comes.Add(comes_free_[pool->slot_class()]);
      const int there = comes.With(demand.slot_bytes) -
                        reserved_.Claimed(pool->slot_class(), demand.slot_bytes, comes);
      const Shortage shortage = {
          .demand = &demand,
          .slot_class = pool->slot_class(),
          .slots = first ? std::max(0, demand.ranks - std::max(0, there)) : demand.ranks,
          .quota = std::max(0, queue.used + demand.ranks - queue.leaving - queue.limit),
          .held_until = first ? absl::InfinitePast() : ReleaseOf(demand)};
      if (shortage.slots == 0 && shortage.quota == 0) return false;  // it comes free by itself
      const std::vector<int> victims =
          ChooseVictims(shortage, input_.queues, input_.holdings, victims_);
      if (victims.empty()) continue;
      int slots = 0;
      for (const int victim : victims) slots += input_.holdings[victim].held;
      if (!best.empty() && slots >= best_slots) continue;
      best = victims;
      best_slots = slots;
    }
    if (best.empty()) {
      auto [hopeless, added] = hopeless_.try_emplace(KindOf(demand), demand.ranks);
      if (!added) hopeless->second = std::min(hopeless->second, demand.ranks);
      return false;
    }
    for (const int victim : best) MakeLeave(input_.holdings[victim], demand.job);
    CountInArray(demand);
    demand.admission = Admission::kGranted;
    demand.counted += demand.ranks;
    input_.queues[demand.queue].used += demand.ranks;
    reserved_.Add(demand, pools, input_.holdings);
    return true;
  }

  void MakeLeave(Holding& victim, int64_t winner) {
    victim.leaving = true;
    victim.leaves_for = winner;
    victim.release = std::min(victim.release, input_.now + input_.graceful_stop);
    input_.queues[victim.queue].leaving += victim.held;
    comes_free_[victim.slot_class].Add(victim.slots);
    schedule_.preemptions.push_back({victim.job, winner});
  }

  // The smallest one that can, to as many ranks as there are slots for. One at a time: while it
  // starts again nothing else is known of what is free.
  void Grow() {
    std::set<int> limited;  // queues in which somebody waits for the limit
    for (const Demand& demand : input_.demands) {
      const auto waiting = schedule_.view.waiting.find(demand.job);
      if (waiting == schedule_.view.waiting.end()) continue;
      switch (waiting->second.code) {
        case WaitCode::kSlots:
        case WaitCode::kTurn:
        case WaitCode::kRoomIsMade:
        case WaitCode::kBackingOff:
          return;
        case WaitCode::kLimit:
          limited.insert(demand.queue);
          break;
        default:
          break;
      }
    }
    std::vector<const Holding*> elastic;
    for (const Holding& holding : input_.holdings) {
      const bool may = !holding.leaving && !holding.larger.empty();
      if (may && !limited.contains(holding.queue)) elastic.push_back(&holding);
    }
    std::sort(elastic.begin(), elastic.end(), [](const Holding* a, const Holding* b) {
      return std::make_tuple(a->held, a->job) < std::make_tuple(b->held, b->job);
    });
    for (const Holding* holding : elastic) {
      const auto pool = input_.pools.find(holding->slot_class);
      if (pool != input_.pools.end() && Grow(*holding, pool->second)) return;
    }
  }

  bool Grow(const Holding& holding, const SlotPool& pool) {
    const QueueShare& queue = input_.queues[holding.queue];
    for (auto size = holding.larger.rbegin(); size != holding.larger.rend(); ++size) {
      // Slots that do not come back, of a host that drains, have to be found as well.
      const int back = holding.slots.With(size->slot_bytes);
      if (size->ranks - back > pool.CountGoodFree(size->slot_bytes)) continue;
      if (queue.used + size->ranks - holding.held > queue.limit) continue;
      schedule_.resizes.push_back({holding.job, size->ranks});
      return true;
    }
    return false;
  }

  void Wait(const Demand& demand, WaitCode code, int64_t blocker) {
    schedule_.view.waiting[demand.job] = {code, ++position_, blocker};
  }

  void TellOfHead(const Demand& demand, const Pools& pools, absl::Time start) {
    KindView& view = schedule_.view;
    if (!view.holders.empty() || view.holders_in_all > 0) return;
    for (const Holding& holding : input_.holdings) {
      const bool useful = std::any_of(pools.begin(), pools.end(), [&](const SlotPool* pool) {
        return pool->slot_class() == holding.slot_class;
      });
      const int slots = holding.slots.With(demand.slot_bytes);
      if (slots == 0 || !useful) continue;
      view.holders.push_back({holding.job, slots, holding.release});
    }
    std::sort(view.holders.begin(), view.holders.end(),
              [](const HolderView& a, const HolderView& b) {
                return std::make_tuple(a.release, a.job) < std::make_tuple(b.release, b.job);
              });
    view.holders_in_all = static_cast<int>(view.holders.size());
    view.holders.resize(std::min(view.holders.size(), kMostHolders));
    view.head_start = start;
  }

  void Summarize() {
    KindView& view = schedule_.view;
    view.summary = std::move(input_.summary);
    for (const auto& [slot_class, pool] : input_.pools) {
      view.slots[slot_class] = {pool.usable(), pool.free()};
    }
    for (const QueueShare& queue : input_.queues)
      view.queues[queue.name] = {queue.used, queue.limit};
  }

  ScheduleInput input_;
  Reservations reserved_;
  Schedule schedule_;
  std::vector<int64_t> limit_blockers_;         // by queue: the job that waits for its limit
  std::vector<int> victims_;                    // who may be told to leave, in order
  std::map<SlotClass, SlotCounts> comes_free_;  // slots of jobs that leave
  std::map<DemandKind, int> hopeless_;          // ranks for which nobody could make room
  std::vector<int> lowest_priority_;            // by queue: of the jobs that may be told to leave
  int wanting_ = 0;                             // jobs that nothing but slots keeps from starting
  int64_t head_ = 0;                            // the first job that waits for slots
  int position_ = 0;
};

}  // namespace

Schedule PlanSchedule(ScheduleInput input) { return Pass(std::move(input)).Run(); }

}  // namespace milepost::coordinator
