#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {

// A spec that asks for context ranks on GPUs is refused.
constinit const CudaOp kTokensToHeads = {};
constinit const CudaOp kHeadsToTokens = {};

}  // namespace milepost::ops::gpu
