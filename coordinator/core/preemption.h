// Who makes room for a job that finds no slots.
//
//   std::vector<int> victims = ChooseVictims(need, queues, holdings, OrderVictims(holdings));
//   // empty: nobody can
//
// Two rights, no more:
// - within a queue a job makes those of lower priority leave;
// - a queue that stays within its guarantee with the job takes back what other queues hold beyond
//   theirs, whatever its priority.
// Victims are those of the lowest priority, then the ones that started last; never more than are
// needed, and none at all unless the job can start when they are gone. They save a checkpoint, and
// are queued again at no cost.
//
// No cycle: by the first right slots go to a strictly higher priority of one queue; by the second
// they go from a queue beyond its guarantee to one that stays within its own, whose job cannot be
// taken back.
#ifndef MILEPOST_COORDINATOR_CORE_PREEMPTION_H_
#define MILEPOST_COORDINATOR_CORE_PREEMPTION_H_

#include <vector>

#include "coordinator/core/schedule_input.h"

namespace milepost::coordinator {

// What is missing of a job, in one class of slots.
struct Shortage {
  const Demand* demand = nullptr;
  SlotClass slot_class;
  int slots = 0;  // that are not free and do not come free by themselves
  int quota = 0;  // slots of the queue's limit, likewise
  // Only those help that would have held their slots until then at least.
  absl::Time held_until = absl::InfinitePast();
};

// Those that may be told to leave, the first to leave first: indices into `holdings`.
std::vector<int> OrderVictims(const std::vector<Holding>& holdings);

// Indices into `holdings`, out of `order`; those that are leaving by now do not count.
std::vector<int> ChooseVictims(const Shortage& shortage, const std::vector<QueueShare>& queues,
                               const std::vector<Holding>& holdings, const std::vector<int>& order);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_PREEMPTION_H_
