// A thread that runs an action whenever a signal arrives.
//
//   BlockSignal(SIGHUP);  // before the first thread
//   SignalThread reload(SIGHUP, [] { ... });
//
// The signal must be blocked in every thread. The destructor waits for a running call.
#ifndef MILEPOST_COMMON_FLAGS_SIGNAL_THREAD_H_
#define MILEPOST_COMMON_FLAGS_SIGNAL_THREAD_H_

#include <atomic>
#include <functional>
#include <thread>

namespace milepost {

// Blocks the signal in this thread, and in those that it starts later.
void BlockSignal(int signal);

class SignalThread {
 public:
  SignalThread(int signal, std::function<void()> action);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  const int signal_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_FLAGS_SIGNAL_THREAD_H_
