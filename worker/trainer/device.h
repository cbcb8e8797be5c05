// The device that a trainer binary trains on. The CPU and NVIDIA GPUs have a binary each, so that
// neither loads the other's libraries.
#ifndef MILEPOST_WORKER_TRAINER_DEVICE_H_
#define MILEPOST_WORKER_TRAINER_DEVICE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/plan/estimates/device_profile.h"
#include "engine/runtime/executor/generation_engine.h"
#include "engine/runtime/executor/step_engine.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::worker {

struct TrainerDevice {
  v1::DeviceKind kind = v1::DEVICE_KIND_CPU;
  runtime::StepEngineFactory engine;
  runtime::GenerationEngineFactory generation;
  // Measures a device profile named `name`, for a rank with `threads` threads. Blocks for seconds.
  std::function<absl::StatusOr<plan::DeviceProfile>(const std::string& name, int threads)> measure;
  // Checks that the device computes correctly. Blocks for seconds. Empty: there is nothing to
  // check.
  std::function<absl::Status()> check;
};

// Defined by the file linked into the binary: worker/trainer_cpu.cc or worker/trainer_cuda.cc.
TrainerDevice DeviceOfThisBinary();

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_DEVICE_H_
