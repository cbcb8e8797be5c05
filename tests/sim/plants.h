// Bugs planted around the real core, so that the checkers can show that they find them. Production
// code knows nothing of them: what goes into a decision or comes out of it is changed here, or the
// loop is given what breaks one of its rules.
#ifndef MILEPOST_TESTS_SIM_PLANTS_H_
#define MILEPOST_TESTS_SIM_PLANTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "coordinator/core/decide.h"

namespace milepost::sim {

enum class Plant : uint8_t {
  kNone,
  kSendBeforeWrite,      // messages leave before the decision is stored
  kAcknowledgeUnsynced,  // the newest write is lost with the coordinator
  kNoLeaseExtension,     // a restart leaves the leases as they were stored
  kForgetGeneration,     // a new attempt's generation is not stored
  kForgetRanks,          // nor the ranks of it
  kForgetRequest,        // request ids are not stored
  kForgetCancel,         // a cancellation is acknowledged, not stored
  kForgetDrain,          // a drain is acknowledged, not stored
  kForgetStale,          // slots of processes that are still there count as free
  kDoubleSlot,           // an attempt gets a slot that somebody has
  kPartialGang,          // an attempt gets a rank less
  kOverLimit,            // the scheduler sees no queue limits
  kDropKill,             // a kill never leaves the coordinator
  kEarlyFinish,          // with its first rank a whole attempt counts as gone
  kAcceptOldReport,      // a report of an older generation counts for the newest
  kAcceptOldProgress,    // progress of an older generation counts for the newest
  kAcceptOldStream,      // what an older stream still says counts
  kAcceptOldCommit,      // a fenced generation may commit
  kFreeFailures,         // failures are not charged
  kChargePreemption,     // preemptions are charged
  kIgnoreDependencies,   // depends_on is not looked at
  kForgetTimeHeld,       // time limits begin anew with every attempt
  kForgetCheckpoint,     // commits are not noted with the job
  kScheduleUnnoted,      // attempts begin although a commit could not be noted
  kStarve,               // some jobs are never started
  kPreemptByTurns,       // who made room may make the other leave in turn
  kResurrect,            // an ended job is queued again
  kIgnoreExclusion,      // excluded hosts are given ranks
  // Of the loop.
  kLostWake,         // some posts do not wake the loop when it sleeps
  kEarlyAnswer,      // callers are answered when it is decided, not when it is stored
  kHalfApplied,      // of what a batch has stored, one job is not applied
  kFailedWriteDone,  // a write that the disk refused counts as done
  kEarlyFence,       // a commit's generation is checked when it arrives, not when it is published
  kActWhenDeposed,   // whether it may act is asked before the write alone
  kDropPost,         // what is posted while others wait for a write may be dropped
  kIgnoreGuard,      // a worker's message is decided on together with the Hello before it
  kLateApplied,      // messages leave before a decision's streams are known
  kCount,
};

const char* PlantName(Plant plant);
std::optional<Plant> PlantNamed(absl::string_view name);
std::vector<Plant> AllPlants();

// The core, with the bug.
class Core {
 public:
  Core(Plant plant, const coordinator::Config& config) : plant_(plant), config_(config) {}

  coordinator::Outcome Decide(const coordinator::State& state,
                              std::vector<coordinator::Event>& events, absl::Time now) const;
  coordinator::Outcome Schedule(const coordinator::State& state, absl::Time now) const;
  Plant plant() const { return plant_; }
  const coordinator::Config& config() const { return config_; }

 private:
  void ChangeEvents(const coordinator::State& state, std::vector<coordinator::Event>& events) const;
  void Change(const coordinator::State& state, coordinator::Outcome& outcome) const;
  void ChangeJob(const v1::JobRecord* before, v1::JobRecord& record) const;
  void ChangeStarts(const coordinator::State& state, coordinator::Outcome& outcome) const;

  const Plant plant_;
  const coordinator::Config config_;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_PLANTS_H_
