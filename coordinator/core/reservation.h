// The slots that a job at the head of the line will get, and who may use them until then (EASY
// backfill: Lifka, "The ANL/IBM SP Scheduling System", 1995).
//
//   Reservations reserved(now);
//   reserved.Add(demand, eligible, holdings);
//   if (!reserved.Delays(pool.slot_class(), ranks, release)) ... start ...
//
// A reservation is of a class of slots: the time at which, by the time limits of the jobs that run,
// enough slots are free, and how many are left over then. A job that ends by then, or gets along
// with what is left over, delays nobody. Where no such time is known, because jobs without a limit
// are in the way, nothing of the class is lent.
#ifndef MILEPOST_COORDINATOR_CORE_RESERVATION_H_
#define MILEPOST_COORDINATOR_CORE_RESERVATION_H_

#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "coordinator/core/schedule_input.h"

namespace milepost::coordinator {

class Reservations {
 public:
  explicit Reservations(absl::Time now) : now_(now) {}

  // For a job that fits none of `pools` now, though all of them could hold it. Reserves the one
  // where it starts first, all of them where that is not known. Returns the time.
  absl::Time Add(const Demand& demand, absl::Span<SlotPool* const> pools,
                 const std::vector<Holding>& holdings);
  // Whether a job that takes `slots` of the class now, until `release`, delays one of them.
  bool Delays(const SlotClass& slot_class, int slots, absl::Time release) const;
  // It does not, and has started.
  void Lend(const SlotClass& slot_class, int slots, absl::Time release);
  bool Any() const { return !reservations_.empty(); }
  // Slots of the class with room for `slot_bytes` that reservations will need of `there`, which are
  // or come free: those that ask for less memory take what is too small for `slot_bytes` first.
  int Claimed(const SlotClass& slot_class, int64_t slot_bytes, const SlotCounts& there) const;

 private:
  struct Reservation {
    SlotClass slot_class;
    int slots = 0;
    int64_t slot_bytes = 0;
    absl::Time start;
    int left_over = 0;
  };
  // What reservations of a class need, seen by one who asks for `slot_bytes`.
  struct Claims {
    int slots = 0;
    int64_t slot_bytes = 0;
    int of_less = 0;         // slots of those that ask for less memory,
    int64_t less_bytes = 0;  // and the most of it

    int Of(const SlotCounts& there) const;
  };
  Claims ClaimsOn(const SlotClass& slot_class, int64_t slot_bytes) const;
  Reservation Plan(const Demand& demand, const SlotPool& pool,
                   const std::vector<Holding>& holdings) const;

  const absl::Time now_;
  std::vector<Reservation> reservations_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_RESERVATION_H_
