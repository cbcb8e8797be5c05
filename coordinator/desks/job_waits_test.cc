#include "coordinator/desks/job_waits.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace milepost::coordinator {
namespace {

// A thread that waits for a change of a job.
class Follower {
 public:
  Follower(absl::Mutex* mutex, JobWaits* waits, int64_t job)
      : thread_([this, mutex, waits, job] {
          absl::MutexLock lock(mutex);
          JobWaits::Waiter waiter(waits, job);
          waiting_ = true;
          while (!changed) {
            if (waiter.Wait(mutex, absl::Seconds(60))) return;
            ++wakes;
          }
        }) {
    absl::MutexLock lock(mutex);
    mutex->Await(absl::Condition(&waiting_));
  }
  void Join() { thread_.join(); }

  // Guarded by the mutex while the thread runs.
  bool changed = false;
  int wakes = 0;

 private:
  bool waiting_ = false;
  std::thread thread_;  // last: starts when all else is there
};

class JobWaitsTest : public ::testing::Test {
 protected:
  void Change(Follower* follower, int64_t job) {
    absl::MutexLock lock(&mutex_);
    follower->changed = true;
    waits_.Wake(job);
  }

  absl::Mutex mutex_;
  JobWaits waits_;
};

TEST_F(JobWaitsTest, AChangeWakesAllWhoWaitForThatJobAndNobodyElse) {
  Follower other(&mutex_, &waits_, 8);
  for (int round = 0; round < 100; ++round) {
    Follower first(&mutex_, &waits_, 7);
    Follower second(&mutex_, &waits_, 7);
    Change(&first, 7);
    first.Join();
    Change(&second, 7);
    second.Join();
    EXPECT_EQ(first.wakes, 1);
    EXPECT_LE(second.wakes, 2);  // of the first one's change as well, where it came to that
  }
  Change(&other, 8);
  other.Join();
  EXPECT_EQ(other.wakes, 1);
}

TEST_F(JobWaitsTest, AllCanBeWoken) {
  Follower first(&mutex_, &waits_, 1);
  Follower second(&mutex_, &waits_, 2);
  {
    absl::MutexLock lock(&mutex_);
    first.changed = second.changed = true;
    waits_.WakeAll();
  }
  first.Join();
  second.Join();
  EXPECT_EQ(first.wakes + second.wakes, 2);
}

TEST_F(JobWaitsTest, WhoHasLeftIsNotWoken) {
  absl::MutexLock lock(&mutex_);
  {
    JobWaits::Waiter waiter(&waits_, 7);
    EXPECT_TRUE(waiter.Wait(&mutex_, absl::ZeroDuration()));
  }
  waits_.Wake(7);
  waits_.WakeAll();
}

}  // namespace
}  // namespace milepost::coordinator
