#include "client/cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>

#include <utility>

#include "common/check.h"

namespace milepost::client {

UniqueFd BlockInterrupts(sigset_t* previous) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  MP_CHECK(pthread_sigmask(SIG_BLOCK, &signals, previous) == 0);
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  MP_CHECK(fd.ok());
  return fd;
}

InterruptGuard::InterruptGuard(std::function<void()> on_interrupt)
    : on_interrupt_(std::move(on_interrupt)),
      signals_(BlockInterrupts(&previous_)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  MP_CHECK(stop_.ok());
  thread_ = std::thread([this] { Run(); });
}

InterruptGuard::~InterruptGuard() {
  const uint64_t one = 1;
  MP_CHECK(write(stop_.get(), &one, sizeof one) == sizeof one);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void InterruptGuard::Run() {
  while (true) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof info) != sizeof info) continue;
    interrupted_ = true;
    on_interrupt_();
  }
}

}  // namespace milepost::client
