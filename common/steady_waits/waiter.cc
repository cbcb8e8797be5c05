// Waits of abseil with a deadline, and so gRPC's timers, take as long as was left of them when they
// began. Abseil 20220623 has the kernel wait until a time of the wall clock: one set back by a
// minute in the middle makes each wait a minute longer, and for as long a process of ours has no
// timers, so it neither connects again nor gives up. Later versions wait by the steady clock where
// the caller gave a duration.
//
// Linked into our binaries (milepost_binary), this definition takes the place of the library's,
// which calls it through its dynamic symbol.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "absl/base/config.h"
#include "absl/synchronization/internal/waiter.h"

#if ABSL_LTS_RELEASE_VERSION == 20220623 && ABSL_WAITER_MODE == ABSL_WAITER_MODE_FUTEX

namespace {

constexpr int64_t kSecond = 1'000'000'000;  // ns

int64_t Nanos(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// Saturated: a deadline may be centuries away.
int64_t NanosUntil(const timespec& time) {
  constexpr int64_t kLongest = int64_t{100} * 365 * 24 * 3600;
  const int64_t now = Nanos(CLOCK_REALTIME);
  if (time.tv_sec - now / kSecond > kLongest) return kLongest * kSecond;
  return time.tv_sec * kSecond + time.tv_nsec - now;
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace synchronization_internal {

bool Waiter::Wait(KernelTimeout t) {
  const bool bounded = t.has_timeout();
  const int64_t end = bounded ? Nanos(CLOCK_MONOTONIC) + NanosUntil(t.MakeAbsTimespec()) : 0;
  while (true) {
    int32_t posts = futex_.load(std::memory_order_relaxed);
    while (posts != 0) {
      if (futex_.compare_exchange_weak(posts, posts - 1, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return true;
      }
    }
    const int64_t left = bounded ? end - Nanos(CLOCK_MONOTONIC) : 0;
    if (bounded && left <= 0) return false;
    // FUTEX_WAIT's time is a duration, by the steady clock. Why it returns does not matter: a post,
    // a signal and the end of the time are looked for above.
    const timespec duration = {static_cast<time_t>(left / kSecond),
                               static_cast<long>(left % kSecond)};
    syscall(SYS_futex, &futex_, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, bounded ? &duration : nullptr);
  }
}

}  // namespace synchronization_internal
ABSL_NAMESPACE_END
}  // namespace absl

#endif
