// How the parts of workspaces are aligned.
#ifndef MILEPOST_ENGINE_OPS_CONTRACT_ALIGNMENT_H_
#define MILEPOST_ENGINE_OPS_CONTRACT_ALIGNMENT_H_

#include <cstdint>

#include "common/round_up.h"

namespace milepost {

constexpr int64_t LineAligned(int64_t bytes) { return RoundUp(bytes, 64); }     // on the CPU
constexpr int64_t DeviceAligned(int64_t bytes) { return RoundUp(bytes, 256); }  // on a GPU

}  // namespace milepost

#endif  // MILEPOST_ENGINE_OPS_CONTRACT_ALIGNMENT_H_
