#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {

// A spec that asks for pipeline stages on GPUs is refused.
constinit const CudaOp kStageReceive = {};
constinit const CudaOp kStageSend = {};

}  // namespace milepost::ops::gpu
