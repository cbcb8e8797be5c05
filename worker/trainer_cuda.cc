// milepost-trainer-cuda: trains on an NVIDIA GPU, the one that CUDA_VISIBLE_DEVICES leaves.
#include <spdlog/spdlog.h>

#include "engine/measure/gpu/gpu_bench.h"
#include "engine/runtime/gpu/cuda/gpu_check.h"
#include "engine/runtime/gpu/cuda/gpu_step_engine.h"
#include "worker/trainer/device.h"
#include "worker/trainer/signals.h"

namespace milepost::worker {

TrainerDevice DeviceOfThisBinary() {
  const runtime::GpuOptions options = {
      .cache_folder = runtime::DefaultCacheFolder(),
      .cancelled = [] { return StopRequested() || AbortRequested(); },
      .note = [](const std::string& text) { spdlog::info("{}", text); }};
  return {
      .kind = v1::DEVICE_KIND_CUDA,
      .engine = runtime::GpuStepEngine(options),
      .generation = runtime::GpuGenerationEngine(options),
      .measure = [](const std::string& name, int) { return runtime::MeasureGpu({.name = name}); },
      .check = [] { return runtime::CheckGpu(/*ordinal=*/0); }};
}

}  // namespace milepost::worker
