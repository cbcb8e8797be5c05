// A GPU has no kernels for factors of gradients yet: common/spec refuses such jobs before.
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

using runtime::BoundOp;
using runtime::CudaBinding;

absl::StatusOr<BoundOp> RefuseFactors(const CudaBinding&) {
  return absl::UnimplementedError(
      "train.powersgd has no kernels for a GPU; choose resources.device: cpu");
}

}  // namespace

constinit const CudaOp kCompressGradients = {.bind = RefuseFactors};
constinit const CudaOp kReduceLeftFactors = {.bind = RefuseFactors};
constinit const CudaOp kProjectGradients = {.bind = RefuseFactors};
constinit const CudaOp kReduceRightFactors = {.bind = RefuseFactors};
constinit const CudaOp kExpandGradients = {.bind = RefuseFactors};
constinit const CudaOp kForgetErrors = {.bind = RefuseFactors};

}  // namespace milepost::ops::gpu
