// Turns Ctrl-C and SIGTERM into events instead of sudden death.
//
//   InterruptGuard guard([&] { connection->Cancel(); });
//   ... blocking calls ...
//   if (guard.interrupted()) return kExitInterrupted;
//
// Make it before other threads exist, and so before the first connection: threads inherit the
// blocked signals. Only one may exist at a time in a process. The callback runs on a thread of the
// guard, once for each signal.
#ifndef MILEPOST_CLIENT_CLI_INTERRUPT_H_
#define MILEPOST_CLIENT_CLI_INTERRUPT_H_

#include <signal.h>

#include <atomic>
#include <functional>
#include <thread>

#include "common/unique_fd.h"

namespace milepost::client {

// Blocks SIGINT, SIGTERM and SIGHUP in this thread and in the threads that it starts. Returns a
// signalfd that becomes readable at each signal. Children of common/subprocess.h start with nothing
// blocked.
UniqueFd BlockInterrupts(sigset_t* previous = nullptr);

class InterruptGuard {
 public:
  explicit InterruptGuard(std::function<void()> on_interrupt);
  ~InterruptGuard();  // restores the signals' default effect
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const { return interrupted_; }

 private:
  void Run();

  const std::function<void()> on_interrupt_;
  sigset_t previous_;
  UniqueFd signals_;
  UniqueFd stop_;  // eventfd
  std::atomic<bool> interrupted_ = false;
  std::thread thread_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_INTERRUPT_H_
