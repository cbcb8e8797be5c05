// The trainer process's signals: SIGTERM and SIGINT ask it to stop at a step boundary; SIGUSR1 to
// abort, since another rank is lost; SIGBUS (a
// mapped data file became shorter) ends it with kExitData and a message.
#ifndef MILEPOST_WORKER_TRAINER_SIGNALS_H_
#define MILEPOST_WORKER_TRAINER_SIGNALS_H_

#include <functional>
#include <thread>

#include "common/unique_fd.h"

namespace milepost::worker {

// Once, first thing in main.
void InstallTrainerSignals();

// Whether a stop was asked for. Async-signal-safe and thread-safe.
bool StopRequested();

// Likewise of an abort.
bool AbortRequested();

// Calls `abort` in another thread as soon as an abort is asked for.
class AbortWatch {
 public:
  explicit AbortWatch(std::function<void()> abort);
  ~AbortWatch();
  AbortWatch(const AbortWatch&) = delete;
  AbortWatch& operator=(const AbortWatch&) = delete;

 private:
  const UniqueFd end_;
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_SIGNALS_H_
