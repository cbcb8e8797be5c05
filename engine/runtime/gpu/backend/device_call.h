// Internal to gpu/backend and to the rooms of ops: the call of a communicator that an op is
// (CollectiveOf), bound.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_CALL_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_CALL_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/executor/collectives.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_communicator.h"

namespace milepost::runtime {

struct DeviceCall {
  // Nothing where the op calls nothing. A call of the update is made in skipped steps too: only the
  // device knows of these, every rank skips the same ones, and what is sent then is not used.
  absl::Status Enqueue() const {
    if (!call.has_value()) return absl::OkStatus();
    return communicator->Enqueue(*call, arena, scratch, stream);
  }

  std::optional<Collective> call;
  DeviceCommunicator* communicator = nullptr;
  char* arena = nullptr;
  void* scratch = nullptr;
  cudaStream_t stream = nullptr;
};

// INTERNAL where the op communicates and there is no communicator, or it has too little scratch.
absl::StatusOr<DeviceCall> DeviceCallOf(const CudaBinding& b);
// The call alone.
absl::StatusOr<BoundOp> BindCall(const CudaBinding& b);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_CALL_H_
