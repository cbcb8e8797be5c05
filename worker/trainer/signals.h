// The trainer process's signals. SIGTERM and SIGINT ask it to stop at a step boundary. SIGUSR1 asks
// it to abort, because another rank is lost. SIGBUS (a mapped data file became shorter) ends it
// with kExitData and a message.
//
// A dedicated thread waits for SIGTERM, SIGINT and SIGUSR1; all other threads block them. No
// handler may run on a thread that computes. While oneDNN 2.6's fp32 products for AVX2
// (jit_avx_gemm_f32) run, the stack pointer points into a heap block. The kernel would write the
// handler's frame over whatever lies below it.
#ifndef MILEPOST_WORKER_TRAINER_SIGNALS_H_
#define MILEPOST_WORKER_TRAINER_SIGNALS_H_

#include <functional>
#include <thread>

#include "common/unique_fd.h"

namespace milepost::worker {

// Call it once, before any other thread starts.
void InstallTrainerSignals();

// True once a stop was requested. Thread-safe.
bool StopRequested();

// True once an abort was requested. Thread-safe.
bool AbortRequested();

// Calls `abort` on another thread as soon as an abort is requested.
class AbortWatch {
 public:
  explicit AbortWatch(std::function<void()> abort);
  ~AbortWatch();
  AbortWatch(const AbortWatch&) = delete;
  AbortWatch& operator=(const AbortWatch&) = delete;

 private:
  const UniqueFd end_;
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_SIGNALS_H_
