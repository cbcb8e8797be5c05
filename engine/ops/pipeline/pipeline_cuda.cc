#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {

constinit const CudaOp kStageReceive = {.bind = runtime::BindCall};
constinit const CudaOp kStageSend = {.bind = runtime::BindCall};

}  // namespace milepost::ops::gpu
