// What a training loop is doing, for whoever watches it from another thread: a loop that hangs
// cannot say it itself.
//
//   ActivityBoard board;
//   board.Enter(Activity::kData, /*step=*/41);       // the loop's thread
//   const ActivityBoard::Seen seen = board.Look();   // another one's, now and then
//
// Enter costs two stores. Thread-safe for one thread that enters and any that look.
#ifndef MILEPOST_ENGINE_RUNTIME_SESSION_ACTIVITY_H_
#define MILEPOST_ENGINE_RUNTIME_SESSION_ACTIVITY_H_

#include <atomic>
#include <cstdint>

namespace milepost::runtime {

enum class Activity : uint8_t {
  kOther,       // what has deadlines of its own, or may take as long as it likes
  kData,        // waiting for the next micro-batch
  kMicroStep,   // forward and backward
  kUpdate,      // reduction of gradients, and the update
  kValidation,  // one turn of an evaluation
  kSetUp,       // before the first step: data and devices are opened, a piece of the state comes
};
inline constexpr int kActivities = 6;

class ActivityBoard {
 public:
  struct Seen {
    Activity activity = Activity::kOther;
    int64_t step = 0;   // that was under way, from 1 on
    uint64_t turn = 0;  // another one: something has been entered since
  };

  void Enter(Activity activity, int64_t step) {
    const uint64_t turn = (state_.load(std::memory_order_relaxed) >> 8) + 1;
    step_.store(step, std::memory_order_relaxed);
    state_.store(turn << 8 | static_cast<uint64_t>(activity), std::memory_order_release);
  }
  Seen Look() const {
    const uint64_t state = state_.load(std::memory_order_acquire);
    return {static_cast<Activity>(state & 0xff), step_.load(std::memory_order_relaxed), state >> 8};
  }

 private:
  std::atomic<uint64_t> state_{0};
  std::atomic<int64_t> step_{0};
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_SESSION_ACTIVITY_H_
