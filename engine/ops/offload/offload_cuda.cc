// The copies are the device executor's.
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/offload/state_disk.h"

namespace milepost::ops::gpu {
namespace {

using runtime::BoundOp;
using runtime::CudaBinding;

absl::StatusOr<BoundOp> BindTransfer(const CudaBinding& b) { return runtime::BindDiskTransfer(b); }

}  // namespace

constinit const CudaOp kGradientsToHost = {.bind = nullptr};
constinit const CudaOp kScalarsToHost = {.bind = nullptr};
constinit const CudaOp kParametersToDevice = {.bind = nullptr};
constinit const CudaOp kCopyToHost = {.bind = nullptr};
constinit const CudaOp kCopyToDevice = {.bind = nullptr};
constinit const CudaOp kReadState = {.bind = BindTransfer};
constinit const CudaOp kWriteState = {.bind = BindTransfer};

}  // namespace milepost::ops::gpu
