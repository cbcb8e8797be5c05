// Measures a worker's GPUs every few seconds on a thread of its own. The driver may be slow or hang
// on a broken GPU, and then nobody else waits for it.
//
//   GpuMonitor monitor(nvml, {{.slot = 0, .gpu = 3}}, absl::Seconds(10),
//                      [&](v1::DeviceFacts facts) { outbox.SetFacts(std::move(facts)); });
//   monitor.MeasureSoon();   // a rank has just failed: is its GPU still there?
//
// When the driver reports a grave error of a GPU (XidNeedsCheck), the GPU is out of order until it
// passes a check. Its facts have the reason. The check is made at the next measurement, and then at
// every tenth.
//
// Thread-safe. The destructor does not wait for a call that hangs: that thread and the library are
// then left behind.
#ifndef MILEPOST_WORKER_AGENT_GPU_MONITOR_H_
#define MILEPOST_WORKER_AGENT_GPU_MONITOR_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"
#include "worker/gpu/nvml.h"

namespace milepost::worker {

class GpuMonitor {
 public:
  struct Watched {
    int slot = 0;
    int gpu = 0;
  };
  // Called on the monitor's thread, or on the thread that calls CheckProgress. Never called by or
  // after the destructor. Should return quickly, and must not call the monitor.
  using Report = std::function<void(v1::DeviceFacts)>;
  // Checks whether a GPU computes correctly. `gpu` is its number. Called on the monitor's thread;
  // should take less than CheckProgress's patience.
  using Check = std::function<absl::Status(int gpu)>;

  // The first measurement starts at once.
  GpuMonitor(std::shared_ptr<Nvml> nvml, std::vector<Watched> watched, absl::Duration interval,
             Report report, Check check);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // Does not block.
  void MeasureSoon();

  // Reports every slot as out of order once a measurement has taken longer than `patience`. Returns
  // when to call it again. Times are SteadyNow's. Does not block.
  absl::Time CheckProgress(absl::Time now, absl::Duration patience);

 private:
  struct Shared;
  static void Loop(std::shared_ptr<Shared> shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_GPU_MONITOR_H_
