// Internal to backends: the ops that copy state to host memory and back (plan::Memory), for all
// devices. What they touch lies in the plan's two arenas.
#ifndef MILEPOST_ENGINE_RUNTIME_OFFLOAD_OFFLOAD_COPY_H_
#define MILEPOST_ENGINE_RUNTIME_OFFLOAD_OFFLOAD_COPY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::runtime {

// Whether the op copies between the device's memory and its host's, and does nothing else.
bool IsOffloadCopy(graph::OpKind kind);

// What such an op copies.
struct OffloadCopy {
  char* to = nullptr;
  const char* from = nullptr;
  int64_t bytes = 0;
};
OffloadCopy OffloadCopyOf(const OpBinding& b);

// The same on the calling thread, with both memories within its reach.
absl::StatusOr<BoundOp> BindOffloadCopy(const OpBinding& b);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_OFFLOAD_OFFLOAD_COPY_H_
