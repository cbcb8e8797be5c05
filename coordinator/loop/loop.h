// The coordinator's loop: what is posted becomes decisions, decisions become durable, and only then
// are they applied, sent and answered. It is stepped: it has no thread, waits for nothing and reads
// no clock but its host's. A thread steps it in the process (loop_thread.h), simulated time in
// tests/sim.
//
//   Loop loop(&host);
//   loop.Load(state);
//   loop.Post({.event = [] { return JobCancelled{"jobs/7"}; },
//              .done = [](const absl::StatusOr<std::string>& job) { ... }});
//   while (!loop.closed()) {
//     const Loop::Next next = loop.Step();
//     if (next.what == Loop::Next::kWrite) loop.Wrote(store.Write(loop.writing()));
//     if (next.what == Loop::Next::kSleep) ... until Wake, at most next.at_most ...
//   }
//
// A turn decides on all that waits when it begins, in batches with one write each; then on what has
// become due; then there is a scheduling pass, where one is wanted and the last one is over for
// long enough. A change that cannot be stored did not happen: whoever posted it hears the error.
// Where a batch cannot be stored, each of its events is decided on alone, as one may need the disk
// that others do not. After a failure the loop takes posts, and pauses with all else.
//
// Post, Close and closed may be called from any thread; Load, Begin, Step, Wrote, writing and End
// from one at a time, which steps. mutex() guards the state, and what hosts keep with it: others
// hold it, shared, while they read.
#ifndef MILEPOST_COORDINATOR_LOOP_LOOP_H_
#define MILEPOST_COORDINATOR_LOOP_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/core/decide.h"
#include "coordinator/loop/loop_host.h"

namespace milepost::coordinator {

// UNAVAILABLE: to whoever posts or waits when the loop has been closed.
absl::Status Stopping();

class Loop {
 public:
  // More than these waiting are refused (COORDINATOR_BUSY).
  static constexpr size_t kMostWaiting = 1 << 16;
  // Without a post a turn begins this often: so a clock that was set is noticed, and time in which
  // nobody listened can be told from sleep.
  static constexpr absl::Duration kLongestSleep = absl::Seconds(1);

  // Something to decide on. Entries are decided on in the order in which they were posted.
  struct Entry {
    // The event, asked for right before it is decided on, once: nullopt: there is nothing to decide
    // any more. Called with mutex() held, shared.
    absl::AnyInvocable<std::optional<Event>()> event;
    // Called with mutex() held when the decision is durable and has not been refused, before its
    // messages leave. The `event` of an entry that is `guarded` has to see what it did: such an
    // entry is not decided on together with one before it that has it. May be empty.
    absl::AnyInvocable<void()> applied = nullptr;
    bool guarded = false;
    // Called at last, without a lock, with the job that the event was about. Must not block.
    absl::AnyInvocable<void(const absl::StatusOr<std::string>&)> done = nullptr;
  };

  // What whoever steps is to do before the next Step.
  struct Next {
    enum What : uint8_t {
      kWrite,  // make writing() durable in one piece, and say by Wrote how that went
      kStep,   // nothing: a turn is over, the next one has something to do
      kSleep,  // a turn is over: sleep until LoopHost::Wake, at most for `at_most`
    };
    What what = kStep;
    absl::Duration at_most;
  };

  // `host` outlives the loop.
  explicit Loop(LoopHost* host, size_t most_waiting = kMostWaiting)
      : host_(*host), most_waiting_(most_waiting) {}

  // ---- by any thread ----
  // `done` hears at once when the loop is closed or has too much waiting.
  void Post(Entry entry);
  // An entry that notes with the job which checkpoint is its newest (LoopHost::NewestCheckpoint).
  // Until that is stored no attempt of any job begins: it would begin with an older one.
  Entry NoteNewest(const std::string& job);
  // From now on posts are refused.
  void Close();
  bool closed() const;

  absl::Mutex& mutex() const ABSL_LOCK_RETURNED(mutex_) { return mutex_; }
  const State& state() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return state_; }

  // ---- by whoever steps ----
  // What the store has.
  void Load(State state);
  // Before the first Step: decides on `events` as one. `done` hears how the write went: nothing
  // else is told of it.
  Next Begin(std::vector<Event> events, absl::AnyInvocable<void(const absl::Status&)> done);
  // Goes on to the next write, or to the end of the turn.
  Next Step();
  // What is to be written, until Wrote.
  const Outcome& writing() const { return deciding_->outcome; }
  void Wrote(const absl::Status& status);
  // After Close: answers what still waits.
  void End();
  // As state(), for whoever steps.
  const State& own_state() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return state_; }

 private:
  // Where a turn goes on.
  enum class Stage : uint8_t {
    kBegin,     // of a turn
    kWaiting,   // decide on what waited then
    kListened,  // were others kept waiting for long?
    kDue,       // lengthen leases for a store that failed
    kTick,      // is something due?
    kSchedule,  // is it time for a pass?
    kNote,      // what no pass may go before
    kAgain,     // the turn ends, and the next one begins
  };

  // One decision, from its events to its answers.
  struct Decision {
    std::vector<Entry> batch;
    std::vector<Event> events;
    std::vector<size_t> asking;  // in `batch`: whose events they are
    Outcome outcome;
    absl::Time began;
    // Hears how the write went, where there is no batch.
    absl::AnyInvocable<void(const absl::Status&)> committed = nullptr;
  };

  // A batch of one.
  static std::vector<Entry> One(Event event,
                                absl::AnyInvocable<void(const absl::StatusOr<std::string>&)> done);
  std::vector<Entry> TakeBatch();
  Next EndTurn(absl::Duration idle);

  // ---- stages ----
  void BeginTurn();
  // False when nothing is left of what waited.
  bool DecideNext();
  void LengthenIfHeldUp();
  void LengthenForFailedStore();
  bool TickIfDue();
  void BeginPass();
  // The next one; then the pass.
  void NoteOrPass();
  void Pass();
  void EndPass(const absl::Status& status);

  // ---- from entries to answers ----
  // Each of these goes on to the next by itself, but for a write: then it goes on in Wrote.
  void Decide(std::vector<Entry> batch);
  void Commit(Decision decision);
  absl::Status Land(Decision* decision);
  void Finish(Decision decision, const absl::Status& status);
  void DecideEachAlone(Decision* decision);

  LoopHost& host_;
  const size_t most_waiting_;

  mutable absl::Mutex post_mutex_;
  std::deque<Entry> posted_ ABSL_GUARDED_BY(post_mutex_);
  bool asleep_ ABSL_GUARDED_BY(post_mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(post_mutex_) = false;

  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);

  // Of whoever steps; times are LoopHost::Steady's, due times LoopHost::Now's.
  Stage stage_ = Stage::kBegin;
  std::optional<Decision> deciding_;  // waits for its write
  size_t left_ = 0;                   // of what waited when the turn began
  std::deque<Entry> alone_;           // of a batch that could not be stored
  std::set<int64_t> unnoted_;         // jobs whose newest checkpoint may not be stored with them
  std::deque<int64_t> to_note_;       // of these, before the pass
  absl::Status noted_;                // how the last one went
  bool schedule_wanted_ = true;       // at first too: jobs that wait say why
  absl::Time pass_began_;
  absl::Time next_schedule_ = absl::InfinitePast();
  absl::Time pause_until_ = absl::InfinitePast();  // a write has failed
  bool store_fails_ = false;                       // the newest write has failed
  // What leases were not lengthened for yet; InfiniteFuture: nothing.
  absl::Time fails_since_ = absl::InfiniteFuture();
  absl::Time listened_ = absl::InfiniteFuture();  // when what waited was last decided on
  bool due_known_ = false;                        // due_ is no later than NextDeadline(state_)
  absl::Time due_;
  absl::Time ticked_ = absl::InfinitePast();  // the due time that a Tick has seen, until a pass
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_LOOP_LOOP_H_
