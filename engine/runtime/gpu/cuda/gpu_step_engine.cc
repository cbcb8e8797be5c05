#include "engine/runtime/gpu/cuda/gpu_step_engine.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/comm/agreement.h"
#include "engine/kernels/cuda/libraries/cublas_products.h"
#include "engine/kernels/cuda/libraries/cudnn_graphs.h"
#include "engine/runtime/gpu/backend/cuda_generation_engine.h"
#include "engine/runtime/gpu/backend/cuda_step_engine.h"
#include "engine/runtime/gpu/backend/diff_engine.h"
#include "engine/runtime/gpu/cuda/cuda_communicator.h"
#include "engine/runtime/gpu/cuda/cuda_device.h"
#include "engine/runtime/gpu/cuda/cuda_status.h"

namespace milepost::runtime {
namespace {

// 90501 -> "9.5.1", with `scale` 10000; of versions as NVIDIA's libraries write them.
std::string VersionText(size_t version, size_t scale) {
  return absl::StrCat(version / scale, ".", version % scale / 100, ".", version % 100);
}

absl::StatusOr<comm::Facts> FactsOf(int ordinal) {
  cudaDeviceProp properties;
  MP_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  return comm::Facts{
      {"GPU", absl::StrCat(properties.name, " (", properties.totalGlobalMem >> 30, " GiB)")},
      {"cuBLASLt", VersionText(cublasLtGetVersion(), 10000)},
      {"cuDNN", VersionText(cudnnGetVersion(), 10000)}};
}

// What training and generation have in common.
struct GpuParts {
  CudaEngineParts parts;
  kernels::cuda::CublasProducts* products = nullptr;  // of `parts`
  bool keeps_algorithms = false;
};

absl::StatusOr<GpuParts> OpenGpu(const GpuOptions& options) {
  GpuParts gpu;
  CudaEngineParts& parts = gpu.parts;
  MP_ASSIGN_OR_RETURN(parts.device, CudaDevice::Open(options.ordinal));
  kernels::cuda::CublasOptions products{.proposals = options.timed_algorithms};
  if (!options.cache_folder.empty()) {
    // Ranks of a host share the file: whoever saves last is right too.
    products.algorithms_path = absl::StrCat(options.cache_folder, "/cublaslt-algorithms");
    gpu.keeps_algorithms = true;
  }
  MP_ASSIGN_OR_RETURN(auto cublas, kernels::cuda::CublasProducts::Create(products));
  gpu.products = cublas.get();
  if (!cublas->algorithms_status().ok()) {
    options.note(std::string(cublas->algorithms_status().message()));
  }
  parts.products = std::move(cublas);
  MP_ASSIGN_OR_RETURN(parts.graphs, kernels::cuda::CudnnGraphs::Create());
  parts.capture = options.capture;
  parts.timeout = options.timeout;
  parts.note = options.note;
  return gpu;
}

// Once all have been chosen.
void SaveAlgorithms(const GpuOptions& options, bool keeps_algorithms,
                    kernels::cuda::CublasProducts& products) {
  if (!keeps_algorithms) return;
  const absl::Status saved = products.SaveAlgorithms();
  if (!saved.ok()) options.note(std::string(saved.message()));
}

// Those by whom the devices' calls on the stream are made.
comm::Communicator* RanksOf(const StepEngineArguments& arguments, plan::Stream stream) {
  switch (stream) {
    case plan::Stream::kStageActivations:
      return arguments.transfers.activations;
    case plan::Stream::kStageGradients:
      return arguments.transfers.gradients;
    default:
      return arguments.device_communicator;
  }
}

absl::StatusOr<std::unique_ptr<StepEngine>> MakeEngine(const GpuOptions& options,
                                                       const StepEngineArguments& arguments) {
  MP_ASSIGN_OR_RETURN(GpuParts gpu, OpenGpu(options));
  MP_ASSIGN_OR_RETURN(const comm::Facts facts, FactsOf(options.ordinal));
  MP_RETURN_IF_ERROR(comm::CheckAgreement(*arguments.communicator, facts));
  if (arguments.communicator->world() > 1 && arguments.device_communicator == nullptr) {
    return absl::InvalidArgumentError("ranks on GPUs need a communicator for their devices");
  }
  const bool stages = arguments.spec.resources().mesh().pipeline() > 1;
  const StageTransfers& transfers = arguments.transfers;
  if (stages && (transfers.activations == nullptr || transfers.gradients == nullptr)) {
    return absl::InvalidArgumentError("stages on GPUs need communicators for what they hand on");
  }
  gpu.parts.communicator = [&](const plan::StepPlan& plan, plan::Stream stream) {
    return ConnectOnGpus(plan, stream, *RanksOf(arguments, stream), GpuTransport::kAuto,
                         options.cancelled);
  };
  MP_ASSIGN_OR_RETURN(auto engine, CudaStepEngine(arguments, std::move(gpu.parts)));
  SaveAlgorithms(options, gpu.keeps_algorithms, *gpu.products);
  return engine;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

StepEngineFactory GpuStepEngine(const GpuOptions& options) {
  return [options](const StepEngineArguments& arguments) { return MakeEngine(options, arguments); };
}

StepEngineFactory GpuDiffEngine(const GpuOptions& options,
                                std::function<void(const OpDiff&)> report) {
  return [options, report = std::move(report)](
             const StepEngineArguments& arguments) -> absl::StatusOr<std::unique_ptr<StepEngine>> {
    MP_ASSIGN_OR_RETURN(GpuParts gpu, OpenGpu(options));
    return DiffEngine(arguments, std::move(gpu.parts), report);
  };
}

GenerationEngineFactory GpuGenerationEngine(const GpuOptions& options) {
  return [options](const v1::ModelSpec& model, const plan::PlanOptions& plan_options)
             -> absl::StatusOr<std::unique_ptr<GenerationEngine>> {
    MP_ASSIGN_OR_RETURN(GpuParts gpu, OpenGpu(options));
    MP_ASSIGN_OR_RETURN(auto engine,
                        CudaGenerationEngine(model, plan_options, std::move(gpu.parts)));
    SaveAlgorithms(options, gpu.keeps_algorithms, *gpu.products);
    return engine;
  };
}

std::string DefaultCacheFolder() {
  std::string folder = Environment("CACHE_DIRECTORY");
  if (folder.empty()) {
    std::string caches = Environment("XDG_CACHE_HOME");
    if (caches.empty() && !Environment("HOME").empty()) caches = Environment("HOME") + "/.cache";
    if (caches.empty()) return "";
    folder = caches + "/milepost";
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : folder;
}

}  // namespace milepost::runtime
