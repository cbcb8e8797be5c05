#include "coordinator/core/preemption.h"

#include <algorithm>
#include <tuple>

namespace milepost::coordinator {
namespace {

// Whether the victim's leaving is right as long as its queue has `used` slots.
bool MustYield(const Demand& demand, const Holding& victim, const std::vector<QueueShare>& queues,
               const std::vector<int>& used) {
  if (victim.queue == demand.queue) return victim.priority < demand.priority;
  const QueueShare& own = queues[demand.queue];
  const int own_used = own.used + (demand.admission == Admission::kNone ? demand.ranks : 0);
  return own_used <= own.guaranteed && used[victim.queue] > queues[victim.queue].guaranteed;
}

}  // namespace

std::vector<int> ChooseVictims(const Shortage& shortage, const std::vector<QueueShare>& queues,
                               const std::vector<Holding>& holdings) {
  const Demand& demand = *shortage.demand;
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(holdings.size()); ++i) {
    const Holding& holding = holdings[i];
    const bool helps = holding.model == shortage.model || holding.queue == demand.queue;
    const bool may_leave = !holding.leaving && !holding.stays && holding.slots > 0;
    if (may_leave && helps && holding.release >= shortage.held_until) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const Holding& x = holdings[a];
    const Holding& y = holdings[b];
    return std::make_tuple(x.priority, y.start, -x.job) <
           std::make_tuple(y.priority, x.start, -y.job);
  });
  std::vector<int> used;
  for (const QueueShare& queue : queues) used.push_back(queue.used);
  int slots = shortage.slots;
  int quota = shortage.quota;
  std::vector<int> chosen;
  for (const int i : order) {
    if (slots <= 0 && quota <= 0) break;
    const Holding& victim = holdings[i];
    const bool of_pool = victim.model == shortage.model;
    const bool of_queue = victim.queue == demand.queue;
    if (!(of_pool && slots > 0) && !(of_queue && quota > 0)) continue;
    if (!MustYield(demand, victim, queues, used)) continue;
    if (of_pool) slots -= victim.slots;
    if (of_queue) quota -= victim.slots;
    used[victim.queue] -= victim.slots;
    chosen.push_back(i);
  }
  if (slots > 0 || quota > 0) return {};
  // Who was taken first may not be needed beside who came later.
  for (size_t k = chosen.size(); k-- > 0;) {
    const Holding& victim = holdings[chosen[k]];
    const int of_pool = victim.model == shortage.model ? victim.slots : 0;
    const int of_queue = victim.queue == demand.queue ? victim.slots : 0;
    if (slots + of_pool > 0 || quota + of_queue > 0) continue;
    slots += of_pool;
    quota += of_queue;
    chosen.erase(chosen.begin() + static_cast<int64_t>(k));
  }
  return chosen;
}

}  // namespace milepost::coordinator
