// Text generation on a GPU (generation_engine.h): CudaBackend's ops on a Device, of the same parts
// as training (cuda_step_engine.h), of which the communicator is not used.
//
//   MP_ASSIGN_OR_RETURN(auto engine, CudaGenerationEngine(model, options, std::move(parts)));
//
// Each program runs op by op once and is a graph from then on. The host waits for the logits of
// every run.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_GENERATION_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_GENERATION_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/generation_engine.h"
#include "engine/runtime/gpu/backend/cuda_step_engine.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {

// Plans for the device, whatever `options` says, and allocates on it. Errors are the parts' and
// those of GenerationEngineFactory; DEADLINE_EXCEEDED later on.
absl::StatusOr<std::unique_ptr<GenerationEngine>> CudaGenerationEngine(
    const v1::ModelSpec& model, const plan::PlanOptions& options, CudaEngineParts parts);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_GENERATION_ENGINE_H_
