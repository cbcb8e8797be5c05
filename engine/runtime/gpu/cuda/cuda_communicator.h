// The communicator of a job's ranks on GPUs: NCCL's where every rank has a GPU of its own, through
// the host where some share one.
//
//   parts.communicator = [&](const plan::StepPlan& plan, plan::Stream stream) {
//     return ConnectOnGpus(plan, stream, *ranks_of(stream));
//   };
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_COMMUNICATOR_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_COMMUNICATOR_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/gpu/backend/device_communicator.h"

namespace milepost::runtime {

enum class GpuTransport : uint8_t { kAuto, kNccl, kHost };

// For the calls of the plan's `stream`. Collective: every rank calls it, its GPU current, with the
// same `stream` and `transport`. Blocks until all are connected. `ranks` is for this alone: where
// collectives go through the host they use it, on a thread of their own, for as long as the result
// lives, and it must outlive that. `cancelled`: as NcclOptions has it.
absl::StatusOr<std::unique_ptr<DeviceCommunicator>> ConnectOnGpus(
    const plan::StepPlan& plan, plan::Stream stream, comm::Communicator& ranks,
    GpuTransport transport = GpuTransport::kAuto, std::function<bool()> cancelled = nullptr);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_COMMUNICATOR_H_
