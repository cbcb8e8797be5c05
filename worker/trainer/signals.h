// The trainer process's signals: SIGTERM and SIGINT ask it to stop at a step boundary; SIGUSR1 to
// abort, since another rank is lost; SIGBUS (a mapped data file became shorter) ends it with
// kExitData and a message.
//
// A thread of its own waits for those that ask; all other threads have them blocked, as no handler
// may run on a thread that computes: oneDNN 2.6's fp32 products for AVX2 (jit_avx_gemm_f32) have
// the stack pointer in a block of the heap while they run, and the kernel would write the
// handler's frame over whatever lies below.
#ifndef MILEPOST_WORKER_TRAINER_SIGNALS_H_
#define MILEPOST_WORKER_TRAINER_SIGNALS_H_

#include <functional>
#include <thread>

#include "common/unique_fd.h"

namespace milepost::worker {

// Once, before any other thread is made.
void InstallTrainerSignals();

// Whether a stop was asked for. Thread-safe.
bool StopRequested();

// Likewise of an abort.
bool AbortRequested();

// Calls `abort` in another thread as soon as an abort is asked for.
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
