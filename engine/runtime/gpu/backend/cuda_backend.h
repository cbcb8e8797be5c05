// The GPU: every op kind bound to the kernels of engine/kernels/cuda and to NVIDIA's libraries,
// which come as interfaces. So this folder needs no CUDA: it is linked with the device's kernels
// and CudaLibraries, or, in tests, with the same kernels on the host (kernels/cuda/testing).
//
//   CudaBackend backend({.products = ..., .graphs = ..., .tables = ...});
//   ...                                                   // plan with Device::kCuda
//   MP_RETURN_IF_ERROR(backend.Prepare(plan));            // libraries choose their algorithms
//   backend.Attach({.arena = ..., .control = ..., .update = ..., .streams = ...});
//   MP_ASSIGN_OR_RETURN(auto executor, DeviceExecutor::Create(plan, plan.train, &backend, ...));
//
// A bound op launches its kernels and never waits. Of the StepContext it reads only what decides
// which kernels run (first_micro_step, many_documents); everything else comes from the StepControl
// in device memory, so that what was captured can be replayed. What reads CudaMemoryOfStep::numbers
// cannot be. Not thread-safe.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_BACKEND_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_BACKEND_H_

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/libraries/attention_graph.h"
#include "engine/kernels/cuda/libraries/device_products.h"
#include "engine/kernels/cuda/libraries/neural_graphs.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/gpu/backend/device_communicator.h"
#include "engine/runtime/gpu/backend/device_tables.h"
#include "engine/runtime/gpu/backend/step_control.h"
#include "engine/runtime/gpu/device/host_numbers.h"

namespace milepost::runtime {

class StateDisk;

struct CudaServices {
  kernels::cuda::DeviceProducts* products = nullptr;
  kernels::cuda::NeuralGraphs* graphs = nullptr;
  DeviceTables* tables = nullptr;
  DeviceCommunicator* communicator = nullptr;  // null where world is 1
  // By which the stages of a pipeline hand on, each on a stream of its own; null: there is one.
  DeviceCommunicator* activations = nullptr;
  DeviceCommunicator* gradients = nullptr;

  // Of the ops of a stream that communicate.
  DeviceCommunicator* CommunicatorOf(plan::Stream stream) const {
    return stream == plan::Stream::kStageActivations ? activations
           : stream == plan::Stream::kStageGradients ? gradients
                                                     : communicator;
  }
};

struct CudaMemoryOfStep {
  char* arena = nullptr;    // plan.arena_bytes, 256-byte aligned
  char* control = nullptr;  // ControlLayoutOf(plan).bytes
  kernels::cuda::UpdateControl* update = nullptr;
  std::array<cudaStream_t, plan::kStreams> streams = {};  // by plan::Stream
  uint64_t seed = 0;
  char* host_arena = nullptr;  // plan.host_arena_bytes of pinned memory, where there are some
  int host_threads = 1;        // for updates by the host
  StateDisk* disk = nullptr;   // where states are on disk
  const HostNumbers* numbers = nullptr;  // where an op's host must know any
};

// Scratch that the libraries asked for, at least: what PlanOptions' min_attention_workspace_bytes
// and min_convolution_workspace_bytes must be.
struct CudaScratch {
  int64_t attention = 0;
  int64_t convolution = 0;
};

class CudaBackend : public Backend {
 public:
  // What the services are must outlive the backend and what it has bound.
  explicit CudaBackend(const CudaServices& services) : services_(services) {}

  // Before the arena is allocated, since algorithms are timed on memory of their own. Blocks.
  // RESOURCE_EXHAUSTED, with the op, where a library wants more scratch than the plan has: `needed`
  // (nullable) says how much; plan again with that.
  absl::Status Prepare(const plan::StepPlan& plan, CudaScratch* needed = nullptr);

  void Attach(const CudaMemoryOfStep& memory) { memory_ = memory; }

  absl::StatusOr<BoundOp> Bind(const plan::StepPlan& plan, const plan::Program& program,
                               const plan::PlannedOp& planned) override;

  // Whether something that was bound reads the tables of documents, and the context's
  // many_documents.
  bool takes_documents() const { return takes_documents_; }

 private:
  // Whether the library is taken for an attention; asked once for each shape.
  bool TakesGraph(const kernels::cuda::AttentionGraph& graph, const plan::PlanOptions& options);
  absl::Status PrepareOp(const plan::StepPlan& plan, const plan::Program& program,
                         const plan::PlannedOp& planned, CudaScratch* needed);

  const CudaServices services_;
  CudaMemoryOfStep memory_;
  std::vector<std::pair<kernels::cuda::AttentionGraph, bool>> attentions_;
  bool takes_documents_ = false;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_BACKEND_H_
