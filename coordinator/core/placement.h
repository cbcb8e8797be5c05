// Which free slots a gang gets: all its ranks or none, on devices of one model, on the fewest
// workers.
//
//   std::vector<PlacedRank> placed = TakeSlots(ranks, &free_by_model);
#ifndef MILEPOST_COORDINATOR_CORE_PLACEMENT_H_
#define MILEPOST_COORDINATOR_CORE_PLACEMENT_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace milepost::coordinator {

// Free slot indices by worker, ascending.
using FreeSlots = std::map<std::string, std::vector<int>>;

// The same by device model: "NVIDIA H200"; CPU slots have the empty model.
using FreeByModel = std::map<std::string, FreeSlots>;

struct PlacedRank {
  std::string worker;
  int slot = 0;
};

// `ranks` slots: whole workers with the most free slots first, the rest on the worker where it fits
// most tightly; ties by name. Consecutive ranks share a worker. Empty when there are too few. Takes
// the slots out of `free`.
std::vector<PlacedRank> TakeSlots(int ranks, FreeSlots* free);

// The same from one model: the one where it takes the fewest workers, then the one with the fewest
// free slots, then the first by name.
std::vector<PlacedRank> TakeSlots(int ranks, FreeByModel* free);

void RemoveSlots(const std::vector<PlacedRank>& placed, FreeByModel* free);

int CountSlots(const FreeSlots& free);
// By model, without those that have none.
std::map<std::string, int> CountSlots(const FreeByModel& free);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_PLACEMENT_H_
