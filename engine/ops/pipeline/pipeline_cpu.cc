#include "engine/runtime/cpu/cpu_collective_call.h"

namespace milepost::ops::cpu {

constinit const CpuOp kStageReceive = {.bind = runtime::BindCall};
constinit const CpuOp kStageSend = {.bind = runtime::BindCall};

}  // namespace milepost::ops::cpu
