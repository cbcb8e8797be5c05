#include "engine/runtime/gpu/backend/device_communicator.h"

namespace milepost::runtime {

int64_t CollectiveScratchBytes(const Collective& call) {
  constexpr int64_t kAlignment = 256;
  constexpr int64_t kRoundedBytes = 2;
  if (!call.rounded) return 0;
  return (call.elements * kRoundedBytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace milepost::runtime
