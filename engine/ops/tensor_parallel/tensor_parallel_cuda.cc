#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

absl::StatusOr<runtime::BoundOp> NotOnGpus(const runtime::CudaBinding&) {
  return absl::UnimplementedError("resources.mesh.tensor is not for GPUs yet");
}

}  // namespace

constinit const CudaOp kTensorReduce = {.bind = NotOnGpus};
constinit const CudaOp kBiasBackward = {.bind = NotOnGpus};

}  // namespace milepost::ops::gpu
