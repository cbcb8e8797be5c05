// milepost-trainer-cuda: trains on an NVIDIA GPU, the one that CUDA_VISIBLE_DEVICES leaves.
#include <spdlog/spdlog.h>

#include "engine/runtime/cuda/gpu_bench.h"
#include "engine/runtime/cuda/gpu_step_engine.h"
#include "worker/trainer/device.h"

namespace milepost::worker {

TrainerDevice DeviceOfThisBinary() {
  return {
      .kind = v1::DEVICE_KIND_CUDA,
      .engine = runtime::GpuStepEngine(
          {.cache_folder = runtime::DefaultCacheFolder(),
           .note = [](const std::string& text) { spdlog::info("{}", text); }}),
      .measure = [](const std::string& name, int) { return runtime::MeasureGpu({.name = name}); }};
}

}  // namespace milepost::worker
