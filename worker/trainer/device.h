// What a trainer binary trains on: there is one binary for the CPU and one for NVIDIA GPUs, so that
// neither loads the other's libraries.
#ifndef MILEPOST_WORKER_TRAINER_DEVICE_H_
#define MILEPOST_WORKER_TRAINER_DEVICE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/plan/device_profile.h"
#include "engine/runtime/generation_engine.h"
#include "engine/runtime/step_engine.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::worker {

struct TrainerDevice {
  v1::DeviceKind kind = v1::DEVICE_KIND_CPU;
  runtime::StepEngineFactory engine;
  runtime::GenerationEngineFactory generation;
  // A profile of this name, of a rank with so many threads. Blocks for seconds.
  std::function<absl::StatusOr<plan::DeviceProfile>(const std::string& name, int threads)> measure;
  // Whether the device computes as it should. Blocks for seconds. None: there is nothing to check.
  std::function<absl::Status()> check;
};

// Of the binary that this is linked into: worker/trainer_cpu.cc, worker/trainer_cuda.cc.
TrainerDevice DeviceOfThisBinary();

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_DEVICE_H_
