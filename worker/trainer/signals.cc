#include "worker/trainer/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "common/exit_codes.h"

namespace milepost::worker {

namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void OnStop(int) { stop_requested = true; }

void OnBusError(int) {
  static const char kMessage[] =
      "a data file became shorter while it was being read (SIGBUS): do not change data files of a "
      "running job; write new ones and rename them into place\n";
  ssize_t ignored = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  (void)ignored;
  _exit(kExitData);
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void InstallTrainerSignals() {
  Handle(SIGTERM, OnStop);
  Handle(SIGINT, OnStop);
  Handle(SIGBUS, OnBusError);
  signal(SIGPIPE, SIG_IGN);
}

bool StopRequested() { return stop_requested; }

}  // namespace milepost::worker
