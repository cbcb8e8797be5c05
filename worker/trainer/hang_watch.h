// Finds out that the training loop hangs, which it cannot do itself, and ends the process with the
// reason: data that does not come, a device that does not answer. A wait for other ranks has a
// deadline of its own (engine/comm), and a wait for the coordinator none.
//
//   HangWatch watch(&board, options, [&](const Hang& hang) { channel.Send(...); _exit(1); });
//
// The same thread tells the worker now and then that the process is alive.
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
#include "engine/runtime/activity.h"
#include "milepost/v1/job.pb.h"

namespace milepost::worker {

struct Hang {
  v1::FailureClass failure_class = v1::FAILURE_CLASS_UNSPECIFIED;
  std::string message;
};

// Pure but for what it has seen before; time is an argument.
class HangJudge {
 public:
  // `patience`: how long the same may take; 20 times the longest that it ever took is let pass too,
  // and the first of its kind, of which nothing is known, may take six times as long; so may each
  // piece of setting up.
  // InfiniteDuration: for ever.
  HangJudge(absl::Duration patience, bool on_gpu) : patience_(patience), on_gpu_(on_gpu) {}

  // `aborting`: this rank was told to leave, since others are lost or have lost patience with one.
  // A wait for data that had gone on for long by then, and goes on, is the cause; what computes is
  // only late in noticing.
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
    std::function<void()> alive;  // every second
    std::function<void(const Hang&)> on_hang;
  };

  // `board` outlives this. All functions are called by the watch's own thread.
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
