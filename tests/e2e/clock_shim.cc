// Preloaded into a process (LD_PRELOAD), gives it a wall clock that the test steps: what it reads,
// and when a wait until a time of that clock ends. Steady clocks and the machine's are left alone.
//
//   MILEPOST_CLOCK_FOLDER   each process maps FOLDER/<its pid>: 8 bytes, nanoseconds to add
//   MILEPOST_CLOCK_OFFSET   what to add until somebody writes there, in nanoseconds (default: 0)
//
// stepped_clock.h is the other side. Of waits, those of futexes, condition variables, semaphores,
// mutexes and clock_nanosleep notice a step while they wait, within kSlice. Left alone are
// timerfd_settime and timer_settime by the wall clock, and what does not go through the C library.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSlice = 20'000'000;  // how late a step is noticed, ns

std::atomic<int64_t> own_offset{0};
std::atomic<std::atomic<int64_t>*> offset{&own_offset};

__attribute__((constructor)) void Map() {
  if (const char* begin = getenv("MILEPOST_CLOCK_OFFSET")) own_offset = atoll(begin);
  const char* folder = getenv("MILEPOST_CLOCK_FOLDER");
  if (folder == nullptr) return;
  char path[4096];
  snprintf(path, sizeof path, "%s/%d", folder, static_cast<int>(getpid()));
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return;
  const int64_t begin = own_offset;
  void* memory = MAP_FAILED;
  if (pwrite(fd, &begin, sizeof begin, 0) == sizeof begin) {
    memory = mmap(nullptr, sizeof begin, PROT_READ, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (memory != MAP_FAILED) offset = static_cast<std::atomic<int64_t>*>(memory);
}

template <typename Function>
Function* Real(const char* name, Function* /*its_type*/) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// The function of that name which this one hides.
#define REAL(name)                                              \
  ([] {                                                         \
    static decltype(&::name) const real = Real(#name, &::name); \
    return real;                                                \
  }())

int64_t Offset() { return offset.load(std::memory_order_relaxed)->load(std::memory_order_relaxed); }
int64_t Nanos(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }
timespec Spec(int64_t nanos) {
  return {static_cast<time_t>(nanos / kSecond), static_cast<long>(nanos % kSecond)};
}
bool IsWall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int64_t TrueNow() {
  timespec now;
  REAL(clock_gettime)(CLOCK_REALTIME, &now);
  return Nanos(now);
}

// `wait` until some time of the machine's clock, again and again until `end` by this process's has
// come or it answers anything but `timed_out`.
template <typename Wait>
long InSlices(const timespec& end, const Wait& wait, long timed_out) {
  while (true) {
    const int64_t now = TrueNow(), due = Nanos(end) - Offset();
    const timespec until = Spec(std::max<int64_t>(std::min(due, now + kSlice), 0));
    const long result = wait(&until);
    if (result != timed_out || Nanos(end) <= TrueNow() + Offset()) return result;
  }
}

// As pthread_cond_timedwait, which may wake for nothing: once in a slice it does.
template <typename Wait>
int CondWait(const timespec& end, const Wait& wait) {
  const int64_t now = TrueNow(), due = Nanos(end) - Offset();
  const timespec until = Spec(std::max<int64_t>(std::min(due, now + kSlice), 0));
  const int result = wait(&until);
  return result == ETIMEDOUT && Nanos(end) > TrueNow() + Offset() ? 0 : result;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = REAL(clock_gettime)(clock, time);
  if (result == 0 && IsWall(clock)) *time = Spec(Nanos(*time) + Offset());
  return result;
}

int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  const timespec now = Spec(TrueNow() + Offset());
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* result) noexcept {
  const time_t now = (TrueNow() + Offset()) / kSecond;
  if (result != nullptr) *result = now;
  return now;
}

int timespec_get(timespec* time, int base) noexcept {
  if (base != TIME_UTC) return 0;
  *time = Spec(TrueNow() + Offset());
  return base;
}

int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex, const timespec* end) {
  const auto wait = [&](const timespec* until) {
    return REAL(pthread_cond_timedwait)(cond, mutex, until);
  };
  const bool steady = (cond->__data.__wrefs & 2) != 0;  // glibc: of pthread_condattr_setclock
  return steady ? wait(end) : CondWait(*end, wait);
}

int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* end) {
  const auto wait = [&](const timespec* until) {
    return REAL(pthread_cond_clockwait)(cond, mutex, clock, until);
  };
  return IsWall(clock) ? CondWait(*end, wait) : wait(end);
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* end) noexcept {
  const auto wait = [&](const timespec* until) {
    return REAL(pthread_mutex_timedlock)(mutex, until);
  };
  return static_cast<int>(InSlices(*end, wait, ETIMEDOUT));
}

int sem_timedwait(sem_t* semaphore, const timespec* end) {
  const auto wait = [&](const timespec* until) {
    const int result = REAL(sem_timedwait)(semaphore, until);
    return result == 0 ? 0 : errno;
  };
  const long error = InSlices(*end, wait, ETIMEDOUT);
  if (error != 0) errno = static_cast<int>(error);
  return error == 0 ? 0 : -1;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* end, timespec* left) {
  if (!IsWall(clock) || (flags & TIMER_ABSTIME) == 0) {
    return REAL(clock_nanosleep)(clock, flags, end, left);
  }
  const auto wait = [&](const timespec* until) {
    return REAL(clock_nanosleep)(clock, flags, until, nullptr);
  };
  return static_cast<int>(InSlices(*end, wait, 0));
}

// Waits of abseil and of libstdc++ come here: futexes, by the wall clock.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& one : a) one = va_arg(list, long);
  va_end(list);
  const long real_flags = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  const auto* end = reinterpret_cast<const timespec*>(a[3]);
  if (number != SYS_futex || (a[1] & ~FUTEX_PRIVATE_FLAG) != real_flags || end == nullptr) {
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  const auto wait = [&](const timespec* until) -> long {
    const long result = REAL(syscall)(number, a[0], a[1], a[2], until, a[4], a[5]);
    return result == -1 ? -errno : result;
  };
  const long result = InSlices(*end, wait, -ETIMEDOUT);
  if (result < 0) errno = static_cast<int>(-result);
  return result < 0 ? -1 : result;
}

}  // extern "C"
