// The coordinator's process, modelled after coordinator/rpc/coordinator_loop.cc and coordinator.cc:
// what is posted is decided on in batches, one write makes a decision durable, then it is applied
// and its messages leave. Decisions are the real core's. Modelled: how long a write takes, that it
// may be refused, and that the process may die before it, after it, or when some messages have
// left. Left out: logs, access, the HTTP side, and that the loop looks around once a second for
// nothing.
#ifndef MILEPOST_TESTS_SIM_LOOP_H_
#define MILEPOST_TESTS_SIM_LOOP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/decide.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace milepost::sim {

class Loop {
 public:
  using Done = absl::AnyInvocable<void(const absl::StatusOr<std::string>&)>;
  // As Coordinator::Entry.
  struct Entry {
    absl::AnyInvocable<std::optional<coordinator::Event>()> event;
    absl::AnyInvocable<void()> applied;
    bool guarded = false;
    Done done;
  };

  explicit Loop(World& world)
      : world_(world), sessions_(static_cast<size_t>(world.options.workers)) {}

  bool up() const { return up_; }
  int64_t epoch() const { return epoch_; }
  const coordinator::State& state() const { return state_; }

  // Loads what is stored, extends the leases. Where that cannot be stored it is tried again.
  void Start();
  void Crash();

  void Post(Entry entry);
  void Do(coordinator::Event event, Done done);

  // ---- streams ----
  void Receive(const StreamPtr& stream, v1::WorkerMessage message);
  void Detach(const StreamPtr& stream);

  // ---- ranks' calls; the answer is what the real service would say ----
  absl::Status CheckGeneration(int64_t job, int64_t generation) const;
  // Publishes the checkpoint between two decisions and notes it with the job, as the next one.
  void Commit(int64_t job, int64_t generation, int64_t number, Done done);

  // As before a job that has ended is resumed.
  void Note(int64_t job) { Post(NoteNewest(job)); }

  int64_t writes() const { return writes_; }
  int64_t passes() const { return passes_; }
  absl::Time up_since() const { return up_since_; }

 private:
  using Next = std::function<void()>;

  void Attach(const StreamPtr& stream, const v1::Hello& hello);
  void Wake();
  void Turn();
  void DecideNext();
  void AfterWaiting();
  void WhatIsDue();
  bool TickIfDue();
  void RunPass();
  void Sleep(absl::Time until);
  std::vector<Entry> TakeBatch();
  void DecideBatch(std::vector<Entry> batch, Next next);
  void DecideAlone(std::shared_ptr<std::vector<Entry>> entries, size_t index, Next next);
  // Calls `after` when the outcome is durable and applied, or refused.
  void Commit(coordinator::Outcome outcome, std::vector<Entry*> applied,
              std::function<void(absl::Status)> after);
  void Land(const coordinator::Outcome& outcome, std::vector<Entry*>& applied);
  // False when the process died on the way.
  bool Dispatch(const coordinator::Outcome& outcome, size_t most);
  void Send(const coordinator::Action& action);
  bool CrashNow(Probe probe);
  absl::Duration WriteTime();
  coordinator::Event NewestCheckpoint(int64_t job) const;
  Entry NoteNewest(int64_t job);
  // One of those that are not; then the next turn.
  void NoteUnnoted();

  World& world_;
  bool up_ = false;
  int64_t epoch_ = 0;
  absl::Time up_since_;
  coordinator::State state_;
  std::vector<StreamPtr> sessions_;  // by worker
  std::deque<Entry> pending_;
  std::set<int64_t> unnoted_;  // jobs whose newest checkpoint may not be stored with them
  size_t left_ = 0;
  bool turning_ = false;  // a turn is under way, or about to begin
  bool asleep_ = false;
  bool schedule_wanted_ = false;
  absl::Time next_schedule_ = absl::InfinitePast();
  absl::Time pause_until_ = absl::InfinitePast();
  absl::Time listened_;
  bool due_known_ = false;
  absl::Time due_;
  absl::Time ticked_ = absl::InfinitePast();
  uint64_t sleep_ = 0;  // the newest one's number: others are over
  int64_t writes_ = 0;
  int64_t passes_ = 0;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_LOOP_H_
