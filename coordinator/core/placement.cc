#include "coordinator/core/placement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/check.h"

namespace milepost::coordinator {
namespace {

PoolSlot* SlotOf(PoolHost& host, int index) {
  for (PoolSlot& slot : host.slots) {
    if (slot.index == index) return &slot;
  }
  return nullptr;
}

}  // namespace

int SlotPool::FreeOf(const PoolHost& host) {
  return static_cast<int>(std::count_if(host.slots.begin(), host.slots.end(),
                                        [](const PoolSlot& slot) { return slot.free; }));
}

void SlotCounts::Add(int64_t memory, int count) {
  total += count;
  by_memory[memory] += count;
}

void SlotCounts::Add(const SlotCounts& other) {
  for (const auto& [memory, count] : other.by_memory) Add(memory, count);
}

int SlotCounts::With(int64_t slot_bytes) const {
  if (slot_bytes == 0) return total;
  int with = 0;
  for (const auto& [memory, count] : by_memory) {
    if (memory == 0 || memory >= slot_bytes) with += count;
  }
  return with;
}

void SlotPool::AddHost(PoolHost host) {
  const int index = static_cast<int>(hosts_.size());
  host_by_worker_[host.worker] = index;
  for (const PoolSlot& slot : host.slots) {
    usable_.Add(slot.memory_bytes, 1);
    if (slot.free) (host.away ? away_ : free_).Add(slot.memory_bytes, 1);
    if (slot.free && !host.away && host.avoided) avoided_free_.Add(slot.memory_bytes, 1);
  }
  if (host.away) host.slots.clear();
  hosts_.push_back(std::move(host));
  Insert(index);
}

void SlotPool::Insert(int index) {
  const PoolHost& host = hosts_[index];
  const int free = FreeOf(host);
  if (free == 0) return;
  const auto add = [&](Group& group) {
    group.hosts[free].insert(index);
    group.free += free;
  };
  if (host.avoided) return add(avoided_);
  add(all_);
  add(racks_[host.rack]);
}

void SlotPool::Erase(int index) {
  const PoolHost& host = hosts_[index];
  const int free = FreeOf(host);
  if (free == 0) return;
  const auto remove = [&](Group& group) {
    auto bucket = group.hosts.find(free);
    bucket->second.erase(index);
    if (bucket->second.empty()) group.hosts.erase(bucket);
    group.free -= free;
  };
  if (host.avoided) return remove(avoided_);
  remove(all_);
  remove(racks_[host.rack]);
}

// Hosts from the one with the most free slots on; as soon as one can hold all that is missing, the
// one of those where it fits most tightly.
std::vector<int> SlotPool::Fill(const Group& group, int ranks) {
  std::vector<int> chosen;
  auto bucket = group.hosts.rbegin();
  auto in_bucket =
      group.hosts.rend() == bucket ? std::set<int>::const_iterator() : bucket->second.begin();
  while (ranks > 0 && bucket != group.hosts.rend()) {
    if (bucket->first >= ranks) {
      // Buckets of at least `ranks`: their hosts were not taken, but for the first of this one.
      auto tightest = group.hosts.lower_bound(ranks);
      chosen.push_back(tightest->first == bucket->first ? *in_bucket : *tightest->second.begin());
      return chosen;
    }
    chosen.push_back(*in_bucket);
    ranks -= bucket->first;
    if (++in_bucket == bucket->second.end()) {
      if (++bucket != group.hosts.rend()) in_bucket = bucket->second.begin();
    }
  }
  return chosen;
}

std::vector<int> SlotPool::ChooseHosts(int ranks) const {
  if (auto fits = all_.hosts.lower_bound(ranks); fits != all_.hosts.end()) {
    return {*fits->second.begin()};
  }
  const Group* rack = nullptr;
  for (const auto& [name, group] : racks_) {
    if (group.free >= ranks && (rack == nullptr || group.free < rack->free)) rack = &group;
  }
  if (rack != nullptr) return Fill(*rack, ranks);
  if (all_.free < ranks) {
    if (auto fits = avoided_.hosts.lower_bound(ranks); fits != avoided_.hosts.end()) {
      return {*fits->second.begin()};
    }
  }
  std::vector<std::pair<int, const Group*>> by_free;
  for (const auto& [name, group] : racks_) by_free.emplace_back(-group.free, &group);
  std::stable_sort(by_free.begin(), by_free.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  by_free.emplace_back(-avoided_.free, &avoided_);
  std::vector<int> chosen;
  for (const auto& [free, group] : by_free) {
    if (ranks <= 0) break;
    const std::vector<int> more = Fill(*group, ranks);
    chosen.insert(chosen.end(), more.begin(), more.end());
    ranks += free;
  }
  return chosen;
}

SlotPool SlotPool::WithRoomFor(int64_t slot_bytes) const {
  SlotPool pool(class_);
  for (PoolHost host : hosts_) {
    std::erase_if(host.slots, [&](const PoolSlot& slot) {
      return slot.memory_bytes != 0 && slot.memory_bytes < slot_bytes;
    });
    pool.AddHost(std::move(host));
  }
  return pool;
}

std::vector<PlacedRank> SlotPool::Find(int ranks, int64_t slot_bytes) const {
  std::vector<PlacedRank> placed;
  if (ranks <= 0 || CountFree(slot_bytes) < ranks) return placed;
  if (CountFree(slot_bytes) < CountFree(0)) return WithRoomFor(slot_bytes).Find(ranks, 0);
  for (const int host : ChooseHosts(ranks)) {
    for (const PoolSlot& slot : hosts_[host].slots) {
      if (!slot.free || static_cast<int>(placed.size()) == ranks) continue;
      placed.push_back({hosts_[host].worker, slot.index});
    }
  }
  MP_CHECK(static_cast<int>(placed.size()) == ranks) << placed.size() << " of " << ranks;
  return placed;
}

std::vector<PlacedRank> SlotPool::Find(int ranks, int64_t slot_bytes,
                                       const std::vector<std::string>& first) const {
  if (first.empty()) return Find(ranks, slot_bytes);
  SlotPool known(class_);
  for (const std::string& worker : first) {
    const auto found = host_by_worker_.find(worker);
    if (found != host_by_worker_.end() && !hosts_[found->second].avoided) {
      known.AddHost(hosts_[found->second]);
    }
  }
  const int there = std::min(ranks, known.CountFree(slot_bytes));
  if (there == 0 || CountFree(slot_bytes) < ranks) return Find(ranks, slot_bytes);
  std::vector<PlacedRank> placed = known.Find(there, slot_bytes);
  if (there == ranks) return placed;
  SlotPool rest = *this;
  rest.Take(placed);
  const std::vector<PlacedRank> more = rest.Find(ranks - there, slot_bytes);
  placed.insert(placed.end(), more.begin(), more.end());
  return placed;
}

std::vector<PlacedRank> SlotPool::FindElsewhere(int ranks, int64_t slot_bytes,
                                                const std::vector<std::string>& last) {
  std::vector<int> avoided;
  for (const std::string& worker : last) {
    const auto found = host_by_worker_.find(worker);
    if (found == host_by_worker_.end() || hosts_[found->second].avoided) continue;
    avoided.push_back(found->second);
    SetAvoided(found->second, true);
  }
  std::vector<PlacedRank> placed = Find(ranks, slot_bytes);
  for (const int host : avoided) SetAvoided(host, false);
  return placed;
}

bool SlotPool::InOneRack(const std::vector<PlacedRank>& placed) const {
  const auto rack_of = [this](const PlacedRank& rank) -> const std::string& {
    return hosts_[host_by_worker_.at(rank.worker)].rack;
  };
  return std::all_of(placed.begin(), placed.end(), [&](const PlacedRank& rank) {
    return rack_of(rank) == rack_of(placed.front());
  });
}

std::vector<PlacedRank> SlotPool::FindGroups(int groups, int ranks, int64_t slot_bytes,
                                             const std::vector<std::string>& last,
                                             bool elsewhere) const {
  std::vector<PlacedRank> found;
  if (ranks <= 0 || CountFree(slot_bytes) < ranks) return found;
  SlotPool rest = CountFree(slot_bytes) < CountFree(0) ? WithRoomFor(slot_bytes) : *this;
  for (int group = 0; group < groups; ++group) {
    std::vector<PlacedRank> placed = elsewhere ? rest.FindElsewhere(ranks / groups, 0, last)
                                               : rest.Find(ranks / groups, 0, last);
    if (!elsewhere && !rest.InOneRack(placed)) {
      std::vector<PlacedRank> other = rest.Find(ranks / groups, 0);
      if (rest.InOneRack(other)) placed = std::move(other);
    }
    rest.Take(placed);
    found.insert(found.end(), placed.begin(), placed.end());
  }
  return found;
}

void SlotPool::SetAvoided(int index, bool avoided) {
  PoolHost& host = hosts_[index];
  Erase(index);
  host.avoided = avoided;
  for (const PoolSlot& slot : host.slots) {
    if (slot.free) avoided_free_.Add(slot.memory_bytes, avoided ? 1 : -1);
  }
  Insert(index);
}

SlotCounts SlotPool::Take(const std::vector<PlacedRank>& placed) {
  SlotCounts taken;
  for (size_t i = 0; i < placed.size();) {
    const std::string& worker = placed[i].worker;
    const auto found = host_by_worker_.find(worker);
    MP_CHECK(found != host_by_worker_.end()) << worker;
    Erase(found->second);
    for (; i < placed.size() && placed[i].worker == worker; ++i) {
      PoolSlot* const slot = SlotOf(hosts_[found->second], placed[i].slot);
      if (slot == nullptr) continue;
      MP_CHECK(slot->free) << worker << "/" << slot->index;
      slot->free = false;
      taken.Add(slot->memory_bytes, 1);
      free_.Add(slot->memory_bytes, -1);
      if (hosts_[found->second].avoided) avoided_free_.Add(slot->memory_bytes, -1);
    }
    Insert(found->second);
  }
  return taken;
}

std::vector<PlacedRank> InGroups(const std::vector<PlacedRank>& placed, int size) {
  if (size <= 1) return placed;
  std::vector<PlacedRank> grouped, left;
  for (size_t begin = 0; begin < placed.size();) {
    size_t end = begin;
    while (end < placed.size() && placed[end].worker == placed[begin].worker) ++end;
    const size_t whole = begin + (end - begin) / static_cast<size_t>(size) * size;
    grouped.insert(grouped.end(), placed.begin() + begin, placed.begin() + whole);
    left.insert(left.end(), placed.begin() + whole, placed.begin() + end);
    begin = end;
  }
  grouped.insert(grouped.end(), left.begin(), left.end());
  return grouped;
}

std::vector<PlacedRank> InMesh(const std::vector<PlacedRank>& placed, int tensor, int pipeline,
                               int context) {
  std::vector<PlacedRank> grouped = InGroups(InGroups(placed, tensor * context), tensor);
  const int model = tensor * pipeline * context, ranks = static_cast<int>(placed.size());
  if (pipeline == 1 || context == 1 || ranks % model != 0) return grouped;
  std::vector<PlacedRank> by_rank(grouped.size());
  for (int slot = 0; slot < ranks; ++slot) {  // of one stage's context ranks after the other
    const int of_tensor = slot % tensor, of_context = slot / tensor % context;
    const int stage = slot / (tensor * context) % pipeline, data = slot / model;
    const int rank = ((data * context + of_context) * pipeline + stage) * tensor + of_tensor;
    by_rank[static_cast<size_t>(rank)] = grouped[static_cast<size_t>(slot)];
  }
  return by_rank;
}

bool IsModel(absl::string_view model, absl::string_view wanted) {
  return absl::StrContains(absl::AsciiStrToLower(model), absl::AsciiStrToLower(wanted));
}

bool IsPool(absl::string_view pool, absl::string_view wanted) {
  return wanted.empty() || pool == wanted;
}

}  // namespace milepost::coordinator
