// What must hold, checked at everything that becomes durable, leaves or happens; and at the end. It
// believes its own books (truth.h) and the processes that are there, not the coordinator.
// docs/internals/simulation.md has the list.
#ifndef MILEPOST_TESTS_SIM_CHECKER_H_
#define MILEPOST_TESTS_SIM_CHECKER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/decide.h"
#include "tests/sim/agent.h"
#include "tests/sim/truth.h"
#include "tests/sim/world.h"

namespace milepost::sim {

class Checker {
 public:
  explicit Checker(World& world);

  // ---- by the loop ----
  // The coordinator has loaded `loaded`; `before` is what it knew when it died.
  void Loaded(const coordinator::State& before, const coordinator::State& loaded);
  void Decided(const coordinator::State& state, const std::vector<coordinator::Event>& events,
               const coordinator::Outcome& outcome);
  // The outcome is durable, and about to be applied to `before`.
  void Committed(const coordinator::State& before, const coordinator::Outcome& outcome);
  void Applied();
  // It could not be stored: nothing of it has happened.
  void Refused();
  void Sent(const coordinator::Action& action);
  // A commit of that generation was let through.
  void Saved(int64_t job, int64_t generation, int64_t number);
  void Ticked();  // a due time, or a scheduling pass
  // A post, which the loop could have looked at since then.
  void LookedAt(absl::Time since);
  // A message or an answer leaves, though another coordinator serves.
  void ActedWhenDeposed();

  // ---- by agents and gangs ----
  void Reached(int64_t job, int64_t generation, int rank, v1::RankState state);
  void ProcessStarted(const RankKey& key, int worker, int slot);
  void Began(const JobTruth& truth, int64_t generation, int64_t step);
  void Stepped(int64_t job, int64_t generation, int64_t start_step, int64_t step);
  void Broke(int64_t job, int64_t generation);

  // ---- by clients ----
  void DrainAnswered(int worker, bool drained);
  void QueueAnswered(const std::string& id, int64_t version);

  // When all is calm and over.
  void End(const coordinator::State& state);

 private:
  using Record = v1::JobRecord;

  void Fail(const char* checker, const Record& record, const std::string& what);
  // checker.cc: one job's change
  void CheckJob(const coordinator::State& before, const Record* old, const Record& now);
  void CheckLife(JobTruth& truth, const Record& old, const Record& now);
  void CheckEndOfJob(const JobTruth& truth, const Record& old, const Record& now);
  void CheckRanks(const coordinator::Outcome& outcome, const coordinator::State& before,
                  const Record& old, const Record& now);
  void CheckStart(const coordinator::State& before, JobTruth& truth, const Record& old,
                  const Record& now);
  void CheckGang(const coordinator::State& before, const Record& now);
  void CheckBudget(const JobTruth& truth, const Record& old, const Record& now);
  void CheckProgress(const JobTruth& truth, const Record& old, const Record& now);
  void CheckPreemption(const coordinator::State& before, const Record& old, const Record& now);
  void Probes(const Record& old, const Record& now);
  // checker_cluster.cc: what is between jobs, and workers
  void CheckSlots(const coordinator::State& before, const coordinator::Outcome& outcome);
  void CheckLimits(const coordinator::State& before, const coordinator::Outcome& outcome);
  void CheckForgotten(const coordinator::State& before, const std::string& name);
  void CheckGivenUp(const coordinator::State& before, const v1::WorkerRecord* old,
                    const v1::WorkerRecord& now);
  void CheckExclusion(const v1::Worker& old, const v1::Worker& now);
  static bool KeepsSlot(const v1::WorkerRecord& worker, const Record& record, int rank);
  void CheckWorker(const v1::WorkerRecord* old, const v1::WorkerRecord& now);
  // Priorities, queues or quotas have changed: who may make whom leave is another question now.
  void RightsChanged() { made_leave_.clear(); }
  void CheckKept(const Record& expected, const Record& loaded);

  World& world_;
  std::map<std::pair<std::string, int>, int64_t> owners_;  // of slots: jobs
  std::map<int64_t, Record> in_doubt_;                     // stored, not applied
  std::vector<int> heard_now_;                             // workers, by the decision under way
  std::set<int> taken_back_;                               // workers, by the same
  std::set<int> deleted_;                                  // workers, by the same
  std::set<int64_t> resumed_;                              // jobs, by the same
  std::vector<absl::Time> heard_;                          // of workers: when last
  absl::Time decided_;
  absl::Time restarted_;
  std::set<int> drained_;                            // workers whose drain was answered
  std::set<int> forgotten_;                          // workers, once
  std::map<std::string, int64_t> queue_versions_;    // that were answered
  std::map<int64_t, std::set<int64_t>> made_leave_;  // by winner: victims
  std::map<int64_t, absl::Time> attempt_begin_;
  absl::Time minute_;
  int ticks_ = 0;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_CHECKER_H_
