// milepost-trainer: trains on the CPU.
#include "worker/trainer/device.h"

#include "engine/measure/cpu_bench.h"
#include "engine/runtime/cpu/cpu_step_engine.h"

namespace milepost::worker {

TrainerDevice DeviceOfThisBinary() {
  return {.kind = v1::DEVICE_KIND_CPU,
          .engine = runtime::CpuStepEngine,
          .measure = [](const std::string& name, int threads) {
            return runtime::MeasureCpu({.name = name, .threads = threads});
          }};
}

}  // namespace milepost::worker
