// Training steps, and generation, on an NVIDIA GPU: CudaStepEngine (gpu/backend) with the
// CUDA runtime, cuBLASLt and cuDNN.
//
//   SessionOptions options{.threads = 8, .engine = GpuStepEngine({.ordinal = 0})};
//   MP_ASSIGN_OR_RETURN(auto session, TrainingSession::Create(spec, options, communicator));
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_CUDA_GPU_STEP_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_CUDA_GPU_STEP_ENGINE_H_

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "engine/runtime/executor/generation_engine.h"
#include "engine/runtime/executor/step_engine.h"
#include "engine/runtime/gpu/backend/op_diff.h"

namespace milepost::runtime {

struct GpuOptions {
  int ordinal = 0;  // among those that CUDA_VISIBLE_DEVICES leaves
  // A folder for what is learnt of a device once: which of cuBLASLt's algorithms are the fastest.
  // Empty: nothing is kept.
  std::string cache_folder;
  // Of cuBLASLt's proposals for a product, how many are timed; 1: its first is taken, so that
  // engines that share no folder have the same bits all the same.
  int timed_algorithms = 8;
  bool capture = true;                         // false: no CUDA graphs
  absl::Duration timeout = absl::Seconds(60);  // of one step's work
  // Asked while the ranks connect to each other: true ends that with ABORTED.
  std::function<bool()> cancelled;
  // What is no error but should be in the log.
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

// The factory's errors: FAILED_PRECONDITION without a driver or a GPU of this number, and those of
// CudaStepEngine.
StepEngineFactory GpuStepEngine(const GpuOptions& options);

// Compares each op with the CPU's (gpu/backend/diff_engine.h): the same errors, those of
// DiffEngine. Nothing is captured.
StepEngineFactory GpuDiffEngine(const GpuOptions& options,
                                std::function<void(const OpDiff&)> report);

// Generation on one: the same errors, those of CudaGenerationEngine.
GenerationEngineFactory GpuGenerationEngine(const GpuOptions& options);

// $CACHE_DIRECTORY (systemd's), $XDG_CACHE_HOME/milepost or ~/.cache/milepost, made if it is not
// there; empty where it cannot be.
std::string DefaultCacheFolder();

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_CUDA_GPU_STEP_ENGINE_H_
