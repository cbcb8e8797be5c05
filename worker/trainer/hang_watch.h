// Detects that the training loop hangs, which the loop cannot do itself. Causes are data that does
// not arrive and a device that does not answer. The watch calls `on_hang` with the reason, which
// ends the process. It does not judge waits for other ranks, which have a deadline in engine/comm,
// or waits for the coordinator, which have none.
//
//   HangWatch watch(&board, options, [&](const Hang& hang) { channel.Send(...); _exit(1); });
//
// The same thread tells the worker every second that the process is alive.
#ifndef MILEPOST_WORKER_TRAINER_HANG_WATCH_H_
#define MILEPOST_WORKER_TRAINER_HANG_WATCH_H_

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/runtime/session/activity.h"
#include "milepost/v1/job.pb.h"

namespace milepost::worker {

struct Hang {
  v1::FailureClass failure_class = v1::FAILURE_CLASS_UNSPECIFIED;
  std::string message;
};

// Decides whether an activity hangs. It remembers how long activities took; time is an argument.
class HangJudge {
 public:
  // `patience` is how long one activity may take. An activity may also take 20 times as long as the
  // longest of its kind so far. The first of a kind may take six times `patience`, because nothing
  // is known of it. The same holds for every piece of setting up. InfiniteDuration: nothing counts
  // as a hang.
  HangJudge(absl::Duration patience, bool on_gpu) : patience_(patience), on_gpu_(on_gpu) {}

  // `aborting`: this rank was told to leave, because others are lost or no longer wait. A wait for
  // data is then the cause if it had lasted long before and still goes on. A rank that computes
  // only notices the abort late, and is not the cause.
  std::optional<Hang> Look(const runtime::ActivityBoard::Seen& seen, absl::Time now, bool aborting);

 private:
  Hang Describe(absl::Duration took) const;

  absl::Duration patience_;
  bool on_gpu_;
  runtime::ActivityBoard::Seen seen_;
  absl::Time since_ = absl::InfinitePast();
  absl::Time abort_time_ = absl::InfiniteFuture();
  std::array<absl::Duration, runtime::kActivities> longest_ = {};
};

class HangWatch {
 public:
  struct Options {
    absl::Duration patience = absl::InfiniteDuration();
    bool on_gpu = false;
    std::function<bool()> aborting;
    std::function<void()> alive;  // called every second
    std::function<void(const Hang&)> on_hang;
  };

  // `board` must outlive this object. The watch's own thread calls all functions.
  HangWatch(const runtime::ActivityBoard* board, Options options);
  ~HangWatch();
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;

 private:
  void Run();

  const runtime::ActivityBoard* const board_;
  const Options options_;
  absl::Mutex mutex_;
  bool end_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_HANG_WATCH_H_
