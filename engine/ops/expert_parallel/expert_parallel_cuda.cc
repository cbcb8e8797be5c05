// A GPU has no kernels for experts yet: common/spec refuses such jobs before.
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

absl::StatusOr<runtime::BoundOp> RefuseExpertRanks(const runtime::CudaBinding&) {
  return absl::UnimplementedError(
      "resources.mesh.expert: there are no kernels of experts for a GPU; choose resources.device: "
      "cpu");
}

}  // namespace

constinit const CudaOp kRowsToExperts = {.bind = RefuseExpertRanks};
constinit const CudaOp kRowsFromExperts = {.bind = RefuseExpertRanks};

}  // namespace milepost::ops::gpu
