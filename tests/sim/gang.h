// What the ranks of one attempt do together, modelled after worker/trainer: they meet, restore,
// step, save, stop at a step that all agree on, lose each other. Steps are not events: what step an
// attempt is at follows from the time.
#ifndef MILEPOST_TESTS_SIM_GANG_H_
#define MILEPOST_TESTS_SIM_GANG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/agent.h"
#include "tests/sim/world.h"

namespace milepost::sim {

struct Gang {
  JobTruth* truth = nullptr;
  int64_t job = 0;
  int64_t generation = 0;
  int64_t checkpoint_step = 0;
  std::vector<Process*> ranks;  // null: not started yet, or ended
  int ready = 0;
  bool stepping = false;
  bool broken = false;    // a rank was lost: it steps no more
  bool stopping = false;  // agreed on
  bool finished = false;  // the last state is saved: ranks leave by themselves
  int64_t start_step = 0;
  absl::Time start_time;  // of its steps
  absl::Duration step_time;
  int64_t base_step = 0;  // done at base_time
  absl::Time base_time;
  absl::Time first_step_time;
  uint64_t plan = 0;  // changes when what was planned does not happen any more

  // The upload under way.
  struct Upload {
    bool active = false;
    bool final = false;
    int64_t step = 0;
    int64_t number = 0;
    uint64_t id = 0;
    int commits = 0;  // asked for
  } upload;
  uint64_t uploads = 0;

  int64_t StepAt(absl::Time time) const;
  absl::Time TimeOf(int64_t step) const { return base_time + step_time * (step - base_step); }
};

class Gangs {
 public:
  explicit Gangs(World& world) : world_(world) {}

  // ---- by the agents ----
  void Started(Process& process, const v1::StartRank& start);
  void Stop(Process& process);   // SIGTERM
  void Abort(Process& process);  // SIGUSR1
  void Kill(Process& process);   // SIGKILL
  void Lost(Process& process);   // gone with its agent

  // ---- by the faults ----
  // A random rank that runs; nullptr: none.
  Process* Any();
  void Fail(Process& process, v1::FailureClass failure_class);
  void Hang(Process& process, bool unkillable);
  // The worker's ranks' steps take other times now.
  void SpeedChanged(int worker);
  // The worker's ranks say soon how far they are.
  void TellSoon(int worker);
  // From now on all steps take a part of their time, so that the end comes soon.
  void Hurry();

 private:
  using GangPtr = std::shared_ptr<Gang>;

  void Meet(uint64_t id, int worker, RankKey key, absl::Time deadline);
  void Begin(const GangPtr& gang);
  int64_t Restore(const Gang& gang);
  void BeginSteps(const GangPtr& gang, int64_t step);
  void Rebase(const GangPtr& gang, absl::Duration step_time);
  absl::Duration StepTime(const Gang& gang) const;
  void ReportRunning(const GangPtr& gang);
  void ReportProgress(const GangPtr& gang);
  v1::Progress ProgressOf(const Gang& gang, const Process& process) const;
  void PlanNext(const GangPtr& gang);
  void ReachStep(const GangPtr& gang, int64_t step);
  void Save(const GangPtr& gang, int64_t step, bool final);
  void BeginUpload(const GangPtr& gang, uint64_t id);
  void CommitUpload(const GangPtr& gang, uint64_t id);
  void UploadEnded(const GangPtr& gang, uint64_t id, const absl::Status& status);
  void Saved(const GangPtr& gang);
  bool Reaches(const Gang& gang) const;
  void LeaveInTime(const GangPtr& gang);
  void Retry(const GangPtr& gang, uint64_t id, bool from_begin);
  void LeaveAll(const GangPtr& gang, v1::RankState state);
  void BreakUp(const GangPtr& gang);
  void KeepInMemory(const Process& process);
  // Ends the process after `delay`, in that way, should it live then.
  void EndSoon(Process& process, absl::Duration delay, v1::RankReport report);
  void End(RankKey key, int worker, uint64_t id, v1::RankReport report);
  v1::RankReport PeerLost(const Process& process) const;
  v1::RankReport Killed(const Process& process) const;
  void Detached(Process& process);
  Process* Find(int worker, const RankKey& key, uint64_t id) const;

  World& world_;
  std::map<std::pair<int64_t, int64_t>, GangPtr> gangs_;
  uint64_t next_id_ = 1;
  double haste_ = 1;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_GANG_H_
