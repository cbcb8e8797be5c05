// The coordinator's process. Its loop is the real one (coordinator/loop), stepped by simulated
// time; modelled is what it has around it: how long a write and a scheduling pass take, that a
// write may be refused, and that the process may die before it, after it, or when some messages
// have left. Left out: logs, access, the HTTP side.
#ifndef MILEPOST_TESTS_SIM_COORDINATOR_H_
#define MILEPOST_TESTS_SIM_COORDINATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/loop/loop.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace milepost::sim {

class Coordinator final : public coordinator::LoopHost {
 public:
  using Entry = coordinator::Loop::Entry;
  using Done = absl::AnyInvocable<void(const absl::StatusOr<std::string>&)>;

  explicit Coordinator(World& world);

  bool up() const { return up_; }
  int64_t epoch() const { return epoch_; }
  // Of the process that runs, or did last.
  const coordinator::State& state() const { return loop_->own_state(); }

  // Loads what is stored, extends the leases. Where that cannot be stored it is tried again.
  void Start();
  void Crash();

  void Do(coordinator::Event event, Done done);

  // ---- streams ----
  void Receive(const StreamPtr& stream, v1::WorkerMessage message);
  void Detach(const StreamPtr& stream);

  // ---- ranks' calls; the answer is what the real service would say ----
  absl::Status CheckGeneration(int64_t job, int64_t generation) const;
  // Publishes the checkpoint between two decisions and notes it with the job, as the next one.
  void Commit(int64_t job, int64_t generation, int64_t number, Done done);

  // As before a job that has ended is resumed.
  void Note(int64_t job);

  int64_t writes() const { return writes_; }
  int64_t passes() const { return passes_; }
  absl::Time up_since() const { return up_since_; }

 private:
  bool Planted(Plant plant) const { return world_.core->plant() == plant; }
  // Nobody hears of it once the process has died.
  void Post(Entry entry);
  void Attach(const StreamPtr& stream, const v1::Hello& hello);
  // `early`: what CheckGeneration answered when the commit arrived.
  void Publish(int64_t job, int64_t generation, int64_t number, const absl::Status& early,
               Done done);
  // Steps until the loop writes or sleeps.
  void Run();
  void WriteAfter(absl::Duration busy);
  void StepAfter(absl::Duration delay);
  absl::Duration WriteTime();
  void CrashNow(Probe probe);
  void Send(const coordinator::Action& action);
  void SendAll(const coordinator::Outcome& outcome);

  // ---- LoopHost ----
  void Wake() override;
  absl::Time Now() override { return world_.now() + busy_; }
  absl::Time Steady() override { return world_.now() + busy_; }
  coordinator::Outcome Decide(const coordinator::State& state,
                              std::vector<coordinator::Event>& events, absl::Time now) override;
  coordinator::Outcome Schedule(const coordinator::State& state, absl::Time now) override;
  absl::Status MayAct() override;
  coordinator::CheckpointsChanged NewestCheckpoint(const std::string& job) override;
  void Durable(const coordinator::State& before, const coordinator::Outcome& outcome) override;
  void Landing(const coordinator::State& before, coordinator::Outcome* outcome) override;
  void Dispatch(const coordinator::State& state, const coordinator::Outcome& outcome) override;
  void Landed() override {}
  void DecidedIn(absl::Duration) override {}
  void ScheduledIn(absl::Duration) override {}
  void HeldUp(absl::Duration) override { world_.Hit(Probe::kLeasesLengthened); }

  // How the write that is under way ends.
  struct Fate {
    bool dies = false;
    // Below 0.3: before it lands; below 0.45: after; below 0.6: another coordinator was elected
    // meanwhile; else while it sends.
    double where = 0;
    bool sent_early = false;  // by a planted bug
  };

  World& world_;
  bool up_ = false;
  int64_t epoch_ = 0;
  absl::Time up_since_;
  std::unique_ptr<coordinator::Loop> loop_;
  std::unique_ptr<coordinator::Loop> starting_;  // not up yet
  std::vector<StreamPtr> sessions_;              // by worker
  Fate fate_;
  bool deposed_ = false;   // another one serves
  absl::Duration busy_;    // what the step under way has taken so far
  absl::Time free_since_;  // when the loop could look at posts again
  int waiting_ = 0;        // posts that it has not looked at
  int wakes_ = 0;
  std::vector<Done> asked_;  // whose events were asked for, in the decision under way: for a plant
  uint64_t step_ = 0;        // the next one's number: others are over
  int64_t writes_ = 0;
  int64_t passes_ = 0;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_COORDINATOR_H_
