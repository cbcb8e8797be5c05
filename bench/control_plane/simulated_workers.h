// For benchmarks of the coordinator: thousands of workers in one process, without trainers. They
// say Hello, send heartbeats, and run whatever ranks they get. Through the outbox of real workers
// (worker/agent/outbox.h) they report what each rank's trainer would report after every step.
//
//   SimulatedWorkers workers({.address = address, .count = 5000, .slots = 8}, &counts);
//   ...
//   // destroyed: all streams end
//
// Each worker has a connection of its own.
#ifndef MILEPOST_BENCH_CONTROL_PLANE_SIMULATED_WORKERS_H_
#define MILEPOST_BENCH_CONTROL_PLANE_SIMULATED_WORKERS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace milepost::bench {

// What all workers have sent and received so far. May lie in memory that processes share.
struct WorkerCounts {
  std::atomic<int64_t> ranks_started = 0;
  std::atomic<int64_t> heartbeats = 0;
  std::atomic<int64_t> progress = 0;
  std::atomic<int64_t> others = 0;  // Hello, reports of ranks
};

struct SimulatedWorkersOptions {
  std::string address;
  int count = 1;
  int slots = 1;
  absl::Duration step = absl::Seconds(1);  // for every rank
};

class SimulatedWorkers {
 public:
  // Connects. `counts` must outlive this object.
  SimulatedWorkers(const SimulatedWorkersOptions& options, WorkerCounts* counts);
  ~SimulatedWorkers();

 private:
  class Worker;
  void RunSteps(absl::Duration step);

  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> stopping_ = false;
  std::thread steps_;
};

// The same in a separate process, so that the workers' own cost is not measured here. Make it
// before anything else, above all before threads. It connects when Connect is called.
class WorkersProcess {
 public:
  WorkersProcess();
  ~WorkersProcess();  // kills it
  void Connect(const SimulatedWorkersOptions& options);
  const WorkerCounts& counts() const { return *counts_; }

 private:
  [[noreturn]] void Be(int from);

  WorkerCounts* counts_;  // shared with the process
  int to_ = -1;
  int child_ = -1;
};

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_CONTROL_PLANE_SIMULATED_WORKERS_H_
