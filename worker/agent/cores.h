// The CPU cores of each slot: the worker's cores in order, split evenly over its slots.
#ifndef MILEPOST_WORKER_AGENT_CORES_H_
#define MILEPOST_WORKER_AGENT_CORES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace milepost::worker {

// "0-3,8,10-11" -> {0,1,2,3,8,10,11}. The result is ascending and has no duplicates.
// INVALID_ARGUMENT says what is wrong.
absl::StatusOr<std::vector<int>> ParseCoreList(const std::string& text);

// The cores that this process may run on.
std::vector<int> AllowedCores();

// Returns one list for each slot. Every core goes to exactly one slot. With fewer cores than slots,
// each slot has one core and shares it. `cores` must not be empty; slots >= 1.
std::vector<std::vector<int>> DivideCores(const std::vector<int>& cores, int slots);

// The threads of a rank that asked for `wanted`. 0 means as many as its slot has cores.
int RankThreads(int wanted, int slot_cores);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_CORES_H_
