// Which free slots a gang gets: all its ranks or none, in one pool of workers, on devices of one
// model, close together.
//
//   SlotPool pool({.pool = "batch", .model = "NVIDIA H200"});
//   pool.AddHost({.worker = "workers/a", .rack = "r1", .slots = {{0, bytes, true}, ...}});
//   std::vector<PlacedRank> placed = pool.Find(8, /*slot_bytes=*/0);   // empty: too few are free
//   pool.Take(placed);
//
// In this order: one host, where it fits most tightly; one rack, the one with the fewest free
// slots; whole racks with the most free slots first. Hosts that are to be avoided come last: a gang
// gets slots there only where it does not fit elsewhere. Ties are broken by name. Consecutive ranks
// share a host.
//
// Finding takes O(log hosts) for a gang that fits one host. Not thread-safe.
#ifndef MILEPOST_COORDINATOR_CORE_PLACEMENT_H_
#define MILEPOST_COORDINATOR_CORE_PLACEMENT_H_

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace milepost::coordinator {

struct PlacedRank {
  std::string worker;
  int slot = 0;
};

struct PoolSlot {
  int index = 0;
  int64_t memory_bytes = 0;  // 0: not known, enough for anything
  bool free = false;
};

struct PoolHost {
  std::string worker;
  std::string rack;      // label of its rack; hosts without one count as a rack
  bool avoided = false;  // it failed recently
  bool away = false;     // disconnected: its slots are not placed on, but may be back at any moment
  std::vector<PoolSlot> slots;
};

// How many slots there are, by their memory.
struct SlotCounts {
  int total = 0;
  std::map<int64_t, int> by_memory = {};  // 0: not known, enough for anything

  void Add(int64_t memory, int count);
  void Add(const SlotCounts& other);
  // With room for `slot_bytes`.
  int With(int64_t slot_bytes) const;
};

// What the slots of a gang have in common.
struct SlotClass {
  std::string pool = {};   // of their workers; empty: that of workers without one
  std::string model = {};  // of their devices; empty for CPU slots

  auto operator<=>(const SlotClass&) const = default;
};

// The same slots in an order in which as many groups of `size` neighbouring ranks as can be have a
// host of their own: whole groups of a host first, and then what is left of the hosts.
std::vector<PlacedRank> InGroups(const std::vector<PlacedRank>& placed, int size);

// By rank of a mesh, whose numbers divide the slots': context ranks of a stage have a host of their
// own as far as can be, with their tensor ranks; of what is left, tensor ranks have.
std::vector<PlacedRank> InMesh(const std::vector<PlacedRank>& placed, int tensor, int pipeline,
                               int context);

// The slots of one class that can be used, free or not.
class SlotPool {
 public:
  explicit SlotPool(SlotClass slot_class) : class_(std::move(slot_class)) {}

  // Hosts in order of their names, each once.
  void AddHost(PoolHost host);

  const SlotClass& slot_class() const { return class_; }
  // Slots with room for `slot_bytes`.
  int CountFree(int64_t slot_bytes) const { return free_.With(slot_bytes); }
  // Of hosts that are not avoided.
  int CountGoodFree(int64_t slot_bytes) const {
    return free_.With(slot_bytes) - avoided_free_.With(slot_bytes);
  }
  int CountUsable(int64_t slot_bytes) const { return usable_.With(slot_bytes); }
  const SlotCounts& free() const { return free_; }
  const SlotCounts& usable() const { return usable_; }
  // That nobody holds, of hosts that are away: not among the free.
  const SlotCounts& away() const { return away_; }

  // `ranks` free slots, by rank. Empty: there are too few.
  std::vector<PlacedRank> Find(int ranks, int64_t slot_bytes) const;
  // The same, on these workers as far as they have free slots and are not avoided.
  std::vector<PlacedRank> Find(int ranks, int64_t slot_bytes,
                               const std::vector<std::string>& first) const;
  // The same, there only as far as there are too few elsewhere: as on hosts that are avoided.
  // Leaves the pool as it was.
  std::vector<PlacedRank> FindElsewhere(int ranks, int64_t slot_bytes,
                                        const std::vector<std::string>& last);
  // The same of so many groups of equal size, one behind the other: each in one rack, as far as can
  // be. `elsewhere`: as FindElsewhere; else on these workers, where a group then has one rack.
  std::vector<PlacedRank> FindGroups(int groups, int ranks, int64_t slot_bytes,
                                     const std::vector<std::string>& last, bool elsewhere) const;
  // They are free no longer. Returns what they have.
  SlotCounts Take(const std::vector<PlacedRank>& placed);

 private:
  // Hosts by how many of their slots are free, and by place in hosts_.
  struct Group {
    std::map<int, std::set<int>> hosts;
    int free = 0;
  };

  bool InOneRack(const std::vector<PlacedRank>& placed) const;
  void SetAvoided(int host, bool avoided);
  void Insert(int host);
  void Erase(int host);
  // The hosts that `ranks` slots of the group's come from, in order: the fewest.
  static std::vector<int> Fill(const Group& group, int ranks);
  std::vector<int> ChooseHosts(int ranks) const;
  SlotPool WithRoomFor(int64_t slot_bytes) const;
  static int FreeOf(const PoolHost& host);

  SlotClass class_;
  std::vector<PoolHost> hosts_;
  absl::flat_hash_map<std::string, int> host_by_worker_;
  std::map<std::string, Group> racks_;  // without the avoided
  Group all_;                           // the same hosts
  Group avoided_;
  SlotCounts free_;
  SlotCounts avoided_free_;  // of these
  SlotCounts usable_;
  SlotCounts away_;
};

using SlotPools = std::map<SlotClass, SlotPool>;

// True when `model` is one that a job asked for by `wanted`: the same, or with `wanted` in it,
// capitals or not ("h200" of "NVIDIA H200"). An empty wish is any.
bool IsModel(absl::string_view model, absl::string_view wanted);
// The same of a pool: this one, or any where none is wanted.
bool IsPool(absl::string_view pool, absl::string_view wanted);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_PLACEMENT_H_
