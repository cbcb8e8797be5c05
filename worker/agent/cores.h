// Which CPU cores a slot has: the worker's cores in order, split evenly over its slots.
#ifndef MILEPOST_WORKER_AGENT_CORES_H_
#define MILEPOST_WORKER_AGENT_CORES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace milepost::worker {

// "0-3,8,10-11" -> {0,1,2,3,8,10,11}. Ascending and without duplicates; INVALID_ARGUMENT says what
// is wrong.
absl::StatusOr<std::vector<int>> ParseCoreList(const std::string& text);

// The cores that this process may run on.
std::vector<int> AllowedCores();

// One list per slot. Every core goes to exactly one slot; with fewer cores than slots, each slot
// has one core and shares it. `cores` is not empty, slots >= 1.
std::vector<std::vector<int>> DivideCores(const std::vector<int>& cores, int slots);

// Threads of a rank that asked for `wanted` (0: as many as its slot has cores).
int RankThreads(int wanted, int slot_cores);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_CORES_H_
