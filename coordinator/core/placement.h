// Which free slots a gang gets: all its ranks or none, on the fewest workers.
#ifndef MILEPOST_COORDINATOR_CORE_PLACEMENT_H_
#define MILEPOST_COORDINATOR_CORE_PLACEMENT_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace milepost::coordinator {

// Free slot indices by worker, ascending.
using FreeSlots = std::map<std::string, std::vector<int>>;

struct PlacedRank {
  std::string worker;
  int slot = 0;
};

// `ranks` slots: whole workers with the most free slots first, the rest on the worker where it fits
// most tightly; ties by name. Consecutive ranks share a worker. Empty when there are too few. Takes
// the slots out of `free`.
std::vector<PlacedRank> TakeSlots(int ranks, FreeSlots* free);

int CountSlots(const FreeSlots& free);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_PLACEMENT_H_
