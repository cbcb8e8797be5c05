// Loops over the OpenMP pool, which oneDNN shares. Every kernel forks through these two.
//
//   ParallelFor(0, n, 4096, [&](int64_t begin, int64_t end) { ... });
//   ParallelTasks(batch * heads, [&](int64_t task, int thread) { ... });
//
// The number of threads is what OpenMP grants the calling thread (omp_set_num_threads,
// OMP_NUM_THREADS); inside another parallel region, and under ThreadSanitizer (libgomp is not
// instrumented), everything runs on the caller. Both block until all is done; neither allocates.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_PARALLEL_H_
#define MILEPOST_ENGINE_KERNELS_CPU_PARALLEL_H_

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace milepost::kernels {

// Threads that a loop started here may use; sizes per-thread workspaces.
inline int MaxThreads() {
#ifdef MILEPOST_TSAN
  return 1;
#else
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#endif
}

// fn(begin, end) over disjoint pieces of [begin, end), at most one piece per thread, every piece
// but the last a multiple of `grain` long. Where the pieces fall depends on the thread count: a
// deterministic kernel must not let its result depend on them.
template <typename Fn>
void ParallelFor(int64_t begin, int64_t end, int64_t grain, const Fn& fn) {
  if (begin >= end) return;
  const int64_t chunks = (end - begin + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<int64_t>(MaxThreads(), chunks));
  if (threads <= 1) {
    fn(begin, end);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t team = omp_get_num_threads();
    const int64_t rank = omp_get_thread_num();
    const int64_t first = begin + chunks * rank / team * grain;
    const int64_t last = std::min(end, begin + chunks * (rank + 1) / team * grain);
    if (first < last) fn(first, last);
  }
}

// fn(task, thread) for every task in [0, tasks), handed out in order to whichever thread is free:
// for few, long tasks. `thread` < MaxThreads() selects a workspace.
template <typename Fn>
void ParallelTasks(int64_t tasks, const Fn& fn) {
  const int threads = static_cast<int>(std::min<int64_t>(MaxThreads(), tasks));
  if (threads <= 1) {
    for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    for (;;) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) break;
      fn(task, thread);
    }
  }
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_PARALLEL_H_
