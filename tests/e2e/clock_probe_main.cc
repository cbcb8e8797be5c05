// For stepped_clock_test: reads the wall clock, or waits until a time by it.
//
//   clock_probe now WAY          prints seconds since 1970, by `WAY` of asking
//   clock_probe wait WAY SECONDS prints a line, waits, ends
//
// steady_clock_probe is the same with common/steady_waits.
#include <semaphore.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace {

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

double TimeOfDay() {
  timeval now;
  gettimeofday(&now, nullptr);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_usec) * 1e-6;
}

const std::map<std::string, std::function<double()>> kReads = {
    {"time", [] { return static_cast<double>(time(nullptr)); }},
    {"gettimeofday", TimeOfDay},
    {"absl", [] { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }},
    {"chrono", [] { return Seconds(std::chrono::system_clock::now().time_since_epoch()); }},
    {"steady", [] { return Seconds(std::chrono::steady_clock::now().time_since_epoch()); }}};

// The end of the wait is known: a step from now on is one in the middle of it.
void SayWaiting() {
  std::printf("waiting\n");
  std::fflush(stdout);
}

void WaitAbsl(std::chrono::milliseconds time) {
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  const bool never = false;
  const absl::Time end = absl::Now() + absl::FromChrono(time);
  SayWaiting();
  mutex.AwaitWithDeadline(absl::Condition(&never), end);
}

template <typename Clock>
void WaitStd(std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto end = Clock::now() + time;
  SayWaiting();
  changed.wait_until(lock, end, [] { return false; });
}

void WaitSemaphore(std::chrono::milliseconds time) {
  sem_t never;
  sem_init(&never, 0, 0);
  const timespec end = absl::ToTimespec(absl::Now() + absl::FromChrono(time));
  SayWaiting();
  sem_timedwait(&never, &end);
}

void Sleep(std::chrono::milliseconds time) {
  const timespec end = absl::ToTimespec(absl::Now() + absl::FromChrono(time));
  SayWaiting();
  clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &end, nullptr);
}

const std::map<std::string, std::function<void(std::chrono::milliseconds)>> kWaits = {
    {"absl", WaitAbsl},
    {"std", WaitStd<std::chrono::system_clock>},
    {"steady", WaitStd<std::chrono::steady_clock>},
    {"semaphore", WaitSemaphore},
    {"sleep", Sleep}};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    std::printf("%.6f\n", kReads.at(argv[2])());
    return 0;
  }
  kWaits.at(argv[2])(std::chrono::seconds(std::atoi(argv[3])));
  return 0;
}
