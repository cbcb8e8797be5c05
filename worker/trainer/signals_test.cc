#include "worker/trainer/signals.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/unique_fd.h"
#include "engine/kernels/cpu/matmul.h"

namespace milepost::worker {
namespace {

using kernels::MatmulCache;
using kernels::MatmulSpec;

// The products of a small layer, forwards and backwards, whose results are known.
bool ProductsAreRight(MatmulCache* cache) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      MatmulSpec spec = {.m = 64, .n = 64, .k = 256};
      spec.transpose_a = transpose_a;
      spec.transpose_b = transpose_b;
      const std::vector<float> a(spec.m * spec.k, 2);
      const std::vector<float> b(spec.k * spec.n, 3);
      std::vector<float> c(spec.m * spec.n, -1);
      const auto bytes = cache->WorkspaceBytes(spec);
      if (!bytes.ok()) return false;
      std::vector<char> workspace(*bytes + 64);
      char* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
      if (!cache->Execute(spec, a.data(), b.data(), nullptr, c.data(), aligned).ok()) return false;
      for (const float x : c) {
        if (x != 6.0F * 256) return false;
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
  MatmulCache cache;
  bool right = true;
  for (int i = 0; i < 300 && right; ++i) right = ProductsAreRight(&cache);
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
