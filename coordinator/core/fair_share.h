// Which queue is next: the one that has the least of what it should have.
//
// A queue below its guarantee comes before all that are not, the one that has the smallest part of
// its guarantee first. The others share what is left by weight: the one that holds the fewest slots
// beyond its guarantee, for its weight, comes first. Ties are broken by place.
//
//   FairShare order(queues);
//   while (order.Any()) { const int queue = order.Next(); ...; order.Put(queue); }
//
// Not thread-safe.
#ifndef MILEPOST_COORDINATOR_CORE_FAIR_SHARE_H_
#define MILEPOST_COORDINATOR_CORE_FAIR_SHARE_H_

#include <set>
#include <tuple>
#include <vector>

#include "coordinator/core/schedule_input.h"

namespace milepost::coordinator {

// (beyond its guarantee, share): smaller comes first.
inline std::tuple<bool, double> ShareKey(const QueueShare& queue) {
  if (queue.used < queue.guaranteed) {
    return {false, static_cast<double>(queue.used) / queue.guaranteed};
  }
  return {true, (queue.used - queue.guaranteed) / queue.weight};
}

class FairShare {
 public:
  explicit FairShare(const std::vector<QueueShare>* queues) : queues_(queues) {}

  bool Any() const { return !order_.empty(); }
  // Takes the queue that is next out.
  int Next() {
    const int queue = std::get<1>(*order_.begin());
    order_.erase(order_.begin());
    return queue;
  }
  // Puts it in with the share that it has now.
  void Put(int queue) { order_.emplace(ShareKey((*queues_)[queue]), queue); }

 private:
  const std::vector<QueueShare>* queues_;
  std::set<std::tuple<std::tuple<bool, double>, int>> order_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_FAIR_SHARE_H_
