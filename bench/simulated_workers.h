// Workers without processes, thousands in one: they say Hello, beat, run whatever ranks they are
// given and report progress. For benchmarks of the coordinator.
//
//   SimulatedWorkers workers(address, 5000, 8, absl::Seconds(10));   // connects
//   workers.WaitConnected();
//   ...
//   // destroyed: all streams end
//
// Each has a connection of its own. Thread-safe.
#ifndef MILEPOST_BENCH_SIMULATED_WORKERS_H_
#define MILEPOST_BENCH_SIMULATED_WORKERS_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace milepost {

class SimulatedWorkers {
 public:
  SimulatedWorkers(const std::string& address, int count, int slots, absl::Duration heartbeat);
  ~SimulatedWorkers();

  void WaitConnected();
  // Ranks that were started, in all.
  int started() const;

 private:
  class Worker;
  void Beat(absl::Duration heartbeat);

  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> stopping_ = false;
  std::thread beats_;
};

}  // namespace milepost

#endif  // MILEPOST_BENCH_SIMULATED_WORKERS_H_
