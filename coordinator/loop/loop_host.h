// What the loop has around it: clocks, decisions, fencing, checkpoints, and where effects go.
//
// Called by whoever steps the loop, but for Wake. Nothing may block for long or call the loop back,
// but that Post is allowed where no lock is said to be held.
#ifndef MILEPOST_COORDINATOR_LOOP_LOOP_HOST_H_
#define MILEPOST_COORDINATOR_LOOP_LOOP_HOST_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/decide.h"

namespace milepost::coordinator {

class LoopHost {
 public:
  virtual ~LoopHost() = default;

  // By any thread: something was posted while whoever steps sleeps.
  virtual void Wake() = 0;

  // The time by which leases end and things are due.
  virtual absl::Time Now() = 0;
  // For pauses, and for how long something took: nobody sets it.
  virtual absl::Time Steady() = 0;

  // DecideAll and DecideSchedule, by what is configured now. With Loop::mutex() held, shared.
  virtual Outcome Decide(const State& state, std::vector<Event>& events, absl::Time now) = 0;
  virtual Outcome Schedule(const State& state, absl::Time now) = 0;

  // OK while this process may act; else why not, which callers then hear.
  virtual absl::Status MayAct() = 0;

  // As the store has it. With Loop::mutex() held.
  virtual CheckpointsChanged NewestCheckpoint(const std::string& job) = 0;

  // ---- what follows a decision, in this order ----
  // It is durable, where it has to be, and this process may act.
  virtual void Durable(const State& before, const Outcome& outcome) = 0;
  // About to be applied to `before`; what the state does not need may be taken out. With
  // Loop::mutex() held.
  virtual void Landing(const State& before, Outcome* outcome) = 0;
  // It has been: its messages leave. Jobs' and workers' records have been moved out of it, their
  // names are there. With Loop::mutex() held.
  virtual void Dispatch(const State& state, const Outcome& outcome) = 0;
  // Without the lock again.
  virtual void Landed() = 0;

  // ---- what is worth knowing ----
  // From the first look at its events on, with the write.
  virtual void DecidedIn(absl::Duration took) = 0;
  virtual void ScheduledIn(absl::Duration took) = 0;
  // For that long nobody's post was looked at: leases are lengthened by as much.
  virtual void HeldUp(absl::Duration time) = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_LOOP_LOOP_HOST_H_
