#include "common/flags/signal_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace milepost {
namespace {

sigset_t Only(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockSignal(int signal) {
  const sigset_t set = Only(signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalThread::SignalThread(int signal, std::function<void()> action)
    : signal_(signal), thread_([this, action = std::move(action)] {
        const sigset_t set = Only(signal_);
        int got = 0;
        while (sigwait(&set, &got) == 0 && !ends_) action();
      }) {}

SignalThread::~SignalThread() {
  ends_ = true;
  pthread_kill(thread_.native_handle(), signal_);
  thread_.join();
}

}  // namespace milepost
