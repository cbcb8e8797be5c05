#include "worker/trainer/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "common/exit_codes.h"

namespace milepost::worker {

namespace {

std::atomic<bool> stop_requested{false};
std::atomic<bool> abort_requested{false};
std::atomic<int> abort_event{-1};

void OnBusError(int) {
  static const char kMessage[] =
      "a data file became shorter while it was being read (SIGBUS): do not change data files of a "
      "running job; write new ones and rename them into place\n";
  ssize_t ignored = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  (void)ignored;
  _exit(kExitData);
}

[[noreturn]] void TakeSignals(const sigset_t& signals) {
  while (true) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    if (signal != SIGUSR1) {
      stop_requested = true;
      continue;
    }
    abort_requested = true;
    const uint64_t one = 1;
    ssize_t ignored = write(abort_event, &one, sizeof one);
    (void)ignored;
  }
}

}  // namespace

void InstallTrainerSignals() {
  // For the life of the process.
  abort_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction bus = {};
  bus.sa_handler = OnBusError;
  sigaction(SIGBUS, &bus, nullptr);
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int taken : {SIGUSR1, SIGTERM, SIGINT}) sigaddset(&signals, taken);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(TakeSignals, signals).detach();
}

bool StopRequested() { return stop_requested; }

bool AbortRequested() { return abort_requested; }

AbortWatch::AbortWatch(std::function<void()> abort) : end_(eventfd(0, EFD_CLOEXEC)) {
  if (!end_.ok()) return;  // no descriptor is left: it is killed instead
  thread_ = std::thread([this, abort = std::move(abort)] {
    pollfd entries[] = {{end_.get(), POLLIN, 0}, {abort_event, POLLIN, 0}};
    while (poll(entries, 2, -1) < 0) continue;
    if (entries[0].revents == 0) abort();
  });
}

AbortWatch::~AbortWatch() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  ssize_t ignored = write(end_.get(), &one, sizeof one);
  (void)ignored;
  thread_.join();
}

}  // namespace milepost::worker
