#include "worker/trainer/signals.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/unique_fd.h"

namespace milepost::worker {
namespace {

// Products of a small layer, whose results are known.
bool ProductsAreRight() {
  constexpr int64_t kRows = 64;
  constexpr int64_t kInner = 256;
  const std::vector<float> a(kRows * kInner, 2);
  const std::vector<float> b(kInner * kRows, 3);
  for (const char transpose_a : {'N', 'T'}) {
    for (const char transpose_b : {'N', 'T'}) {
      std::vector<float> c(kRows * kRows, -1);
      dnnl_sgemm(transpose_a, transpose_b, kRows, kRows, kInner, 1, a.data(),
                 transpose_a == 'N' ? kInner : kRows, b.data(), transpose_b == 'N' ? kRows : kInner,
                 0, c.data(), kRows);
      for (const float x : c) {
        if (x != 6.0F * kInner) return false;
      }
    }
  }
  return true;
}

[[noreturn]] void ComputeUnderSignals() {
  setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);  // whose products cannot bear a handler
  omp_set_num_threads(1);
  InstallTrainerSignals();
  std::atomic<bool> computes{true};
  std::thread sender([&] {
    while (computes) {
      kill(getpid(), SIGTERM);
      kill(getpid(), SIGUSR1);
      usleep(50);
    }
  });
  bool right = true;
  for (int i = 0; i < 4000 && right; ++i) right = ProductsAreRight();
  computes = false;
  sender.join();
  _exit(right && StopRequested() && AbortRequested() ? 0 : 1);
}

[[noreturn]] void AwaitOne(int signal, bool (*requested)(), bool (*other)()) {
  InstallTrainerSignals();
  kill(getpid(), signal);
  while (!requested()) std::this_thread::yield();
  _exit(other() ? 1 : 0);
}

[[noreturn]] void AwaitAbort() {
  InstallTrainerSignals();
  const AbortWatch watch([] { _exit(AbortRequested() ? 0 : 1); });
  kill(getpid(), SIGUSR1);
  while (true) pause();
}

class SignalsTest : public ::testing::Test {
 protected:
  SignalsTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SignalsTest, WhatIsAskedForIsKnown) {
  EXPECT_EXIT(AwaitOne(SIGTERM, StopRequested, AbortRequested), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(AwaitOne(SIGINT, StopRequested, AbortRequested), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(AwaitOne(SIGUSR1, AbortRequested, StopRequested), ::testing::ExitedWithCode(0), "");
}

TEST_F(SignalsTest, AnAbortIsWatchedFor) {
  EXPECT_EXIT(AwaitAbort(), ::testing::ExitedWithCode(0), "");
}

TEST_F(SignalsTest, ProductsAreNotHarmed) {
  EXPECT_EXIT(ComputeUnderSignals(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace milepost::worker
