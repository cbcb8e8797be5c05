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

std::vector<int> OrderVictims(const std::vector<Holding>& holdings) {
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(holdings.size()); ++i) {
    const Holding& holding = holdings[i];
    if (!holding.leaving && !holding.stays && holding.held > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const Holding& x = holdings[a];
    const Holding& y = holdings[b];
    return std::make_tuple(x.priority, y.start, -x.job) <
           std::make_tuple(y.priority, x.start, -y.job);
  });
  return order;
}

std::vector<int> ChooseVictims(const Shortage& shortage, const std::vector<QueueShare>& queues,
                               const std::vector<Holding>& holdings,
                               const std::vector<int>& order) {
  const Demand& demand = *shortage.demand;
  const auto of_class = [&](const Holding& victim) {
    return victim.slot_class == shortage.slot_class ? victim.slots.With(demand.slot_bytes) : 0;
  };
  const auto of_queue = [&](const Holding& victim) {
    return victim.queue == demand.queue ? victim.held : 0;
  };
  std::vector<int> used;
  for (const QueueShare& queue : queues) used.push_back(queue.used - queue.leaving);
  int slots = shortage.slots;
  int quota = shortage.quota;
  std::vector<int> chosen;
  for (const int i : order) {
    if (slots <= 0 && quota <= 0) break;
    const Holding& victim = holdings[i];
    const bool helps = (slots > 0 && of_class(victim) > 0) || (quota > 0 && of_queue(victim) > 0);
    if (victim.leaving || !helps || victim.release < shortage.held_until) continue;
    if (!MustYield(demand, victim, queues, used)) continue;
    slots -= of_class(victim);
    quota -= of_queue(victim);
    used[victim.queue] -= victim.held;
    chosen.push_back(i);
  }
  if (slots > 0 || quota > 0) return {};
  // Who was taken first may not be needed beside who came later.
  for (size_t k = chosen.size(); k-- > 0;) {
    const Holding& victim = holdings[chosen[k]];
    if (slots + of_class(victim) > 0 || quota + of_queue(victim) > 0) continue;
    slots += of_class(victim);
    quota += of_queue(victim);
    chosen.erase(chosen.begin() + static_cast<int64_t>(k));
  }
  return chosen;
}

}  // namespace milepost::coordinator
