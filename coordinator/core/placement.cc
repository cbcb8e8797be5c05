#include "coordinator/core/placement.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace milepost::coordinator {

namespace {

// The smallest worker that can hold all `ranks`, else the largest worker.
FreeSlots::iterator BestWorker(int ranks, FreeSlots* free) {
  auto best = free->end();
  for (auto it = free->begin(); it != free->end(); ++it) {
    if (it->second.empty()) continue;
    if (best == free->end()) {
      best = it;
      continue;
    }
    const int size = static_cast<int>(it->second.size());
    const int best_size = static_cast<int>(best->second.size());
    const bool fits = size >= ranks;
    const bool best_fits = best_size >= ranks;
    if (fits ? (!best_fits || size < best_size) : (!best_fits && size > best_size)) best = it;
  }
  return best;
}

size_t CountWorkers(const std::vector<PlacedRank>& placed) {
  std::set<std::string> workers;
  for (const PlacedRank& rank : placed) workers.insert(rank.worker);
  return workers.size();
}

}  // namespace

int CountSlots(const FreeSlots& free) {
  int count = 0;
  for (const auto& [worker, slots] : free) count += static_cast<int>(slots.size());
  return count;
}

std::vector<PlacedRank> TakeSlots(int ranks, FreeSlots* free) {
  std::vector<PlacedRank> placed;
  if (ranks <= 0 || CountSlots(*free) < ranks) return placed;
  while (static_cast<int>(placed.size()) < ranks) {
    const int missing = ranks - static_cast<int>(placed.size());
    auto worker = BestWorker(missing, free);
    std::vector<int>& slots = worker->second;
    const int taken = std::min(missing, static_cast<int>(slots.size()));
    for (int i = 0; i < taken; ++i) placed.push_back({worker->first, slots[i]});
    slots.erase(slots.begin(), slots.begin() + taken);
  }
  return placed;
}

void RemoveSlots(const std::vector<PlacedRank>& placed, FreeByModel* free) {
  for (const PlacedRank& rank : placed) {
    for (auto& [model, workers] : *free) {
      auto worker = workers.find(rank.worker);
      if (worker != workers.end()) std::erase(worker->second, rank.slot);
    }
  }
}

std::map<std::string, int> CountSlots(const FreeByModel& free) {
  std::map<std::string, int> counts;
  for (const auto& [model, slots] : free) {
    if (const int count = CountSlots(slots); count > 0) counts[model] = count;
  }
  return counts;
}

std::vector<PlacedRank> TakeSlots(int ranks, FreeByModel* free) {
  FreeSlots* chosen = nullptr;
  std::tuple<size_t, int> chosen_key;
  for (auto& [model, slots] : *free) {
    FreeSlots trial = slots;
    const std::vector<PlacedRank> placed = TakeSlots(ranks, &trial);
    const std::tuple<size_t, int> key = {CountWorkers(placed), CountSlots(slots)};
    if (placed.empty() || (chosen != nullptr && key >= chosen_key)) continue;
    chosen = &slots;
    chosen_key = key;
  }
  return chosen == nullptr ? std::vector<PlacedRank>() : TakeSlots(ranks, chosen);
}

}  // namespace milepost::coordinator
