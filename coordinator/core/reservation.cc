#include "coordinator/core/reservation.h"

#include <algorithm>
#include <utility>

namespace milepost::coordinator {

int Reservations::Claims::Of(const SlotCounts& there) const {
  if (of_less == 0) return slots;
  const int too_small = there.With(less_bytes) - there.With(slot_bytes);
  return slots + std::max(0, of_less - too_small);
}

Reservations::Claims Reservations::ClaimsOn(const SlotClass& slot_class, int64_t slot_bytes) const {
  Claims claims = {.slot_bytes = slot_bytes};
  for (const Reservation& reservation : reservations_) {
    if (reservation.slot_class != slot_class) continue;
    if (reservation.slot_bytes >= slot_bytes) {
      claims.slots += reservation.slots;
      continue;
    }
    claims.of_less += reservation.slots;
    claims.less_bytes = std::max(claims.less_bytes, reservation.slot_bytes);
  }
  return claims;
}

int Reservations::Claimed(const SlotClass& slot_class, int64_t slot_bytes,
                          const SlotCounts& there) const {
  return ClaimsOn(slot_class, slot_bytes).Of(there);
}

// Holdings of the class come free in the order of their release, after what is free now, as far as
// their slots have room; earlier reservations are served first.
Reservations::Reservation Reservations::Plan(const Demand& demand, const SlotPool& pool,
                                             const std::vector<Holding>& holdings) const {
  const SlotClass& slot_class = pool.slot_class();
  std::vector<std::pair<absl::Time, const SlotCounts*>> releases;
  for (const Holding& holding : holdings) {
    if (holding.slot_class == slot_class && holding.release < absl::InfiniteFuture()) {
      releases.emplace_back(std::max(holding.release, now_), &holding.slots);
    }
  }
  std::stable_sort(releases.begin(), releases.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  SlotCounts there = pool.free();
  const Claims claims = ClaimsOn(slot_class, demand.slot_bytes);
  const auto left = [&] { return there.With(demand.slot_bytes) - claims.Of(there); };
  int free = left();
  Reservation reservation = {.slot_class = slot_class,
                             .slots = demand.ranks,
                             .slot_bytes = demand.slot_bytes,
                             .start = free >= demand.ranks ? now_ : absl::InfiniteFuture()};
  for (const auto& [time, slots] : releases) {
    if (free >= demand.ranks && time > reservation.start) break;
    there.Add(*slots);
    free = left();
    if (free >= demand.ranks) reservation.start = time;
  }
  const bool known = reservation.start < absl::InfiniteFuture();
  reservation.left_over = known ? free - demand.ranks : 0;
  return reservation;
}

absl::Time Reservations::Add(const Demand& demand, absl::Span<SlotPool* const> pools,
                             const std::vector<Holding>& holdings) {
  std::vector<Reservation> possible;
  absl::Time first = absl::InfiniteFuture();
  for (const SlotPool* pool : pools) {
    possible.push_back(Plan(demand, *pool, holdings));
    first = std::min(first, possible.back().start);
  }
  for (Reservation& reservation : possible) {
    if (reservation.start != first) continue;
    reservations_.push_back(std::move(reservation));
    if (first < absl::InfiniteFuture()) break;
  }
  return first;
}

bool Reservations::Delays(const SlotClass& slot_class, int slots, absl::Time release) const {
  return std::any_of(reservations_.begin(), reservations_.end(), [&](const Reservation& reserved) {
    if (reserved.slot_class != slot_class || slots <= reserved.left_over) return false;
    return reserved.start == absl::InfiniteFuture() || release > reserved.start;
  });
}

void Reservations::Lend(const SlotClass& slot_class, int slots, absl::Time release) {
  for (Reservation& reserved : reservations_) {
    const bool known = reserved.start < absl::InfiniteFuture();
    if (reserved.slot_class != slot_class || (known && release <= reserved.start)) continue;
    reserved.left_over -= slots;
  }
}

}  // namespace milepost::coordinator
