// Ranks on GPUs do not exchange rows of experts: common/spec refuses such jobs before.
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

absl::StatusOr<runtime::BoundOp> RefuseExpertRanks(const runtime::CudaBinding&) {
  return absl::UnimplementedError(
      "resources.mesh.expert: ranks on GPUs do not exchange rows of experts: take 1");
}

}  // namespace

constinit const CudaOp kRowsToExperts = {.bind = RefuseExpertRanks};
constinit const CudaOp kRowsFromExperts = {.bind = RefuseExpertRanks};

}  // namespace milepost::ops::gpu
