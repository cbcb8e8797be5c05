// Internal to backends: the ops by which state waits in host memory (plan::Memory), the same for
// all devices. What they touch lies in the plan's two arenas.
#ifndef MILEPOST_ENGINE_RUNTIME_OFFLOAD_H_
#define MILEPOST_ENGINE_RUNTIME_OFFLOAD_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/op_binding.h"

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

// kOptimizer of an offloaded group: the calling thread and its OpenMP threads update the host's
// master, m and v by its copy of the gradient, and leave the parameters for kParametersToDevice. In
// a step that is skipped (context.skip_update) they leave them as they were. The same kernels as
// the CPU's, so the same bits.
absl::StatusOr<BoundOp> BindHostOptimizer(const OpBinding& b);

// The same where the context's skip_update and clip_factor are not set: they are made of the plan's
// host_scalars. Uses `threads` OpenMP threads whatever thread calls it.
absl::StatusOr<BoundOp> BindDecidingHostOptimizer(const OpBinding& b, int threads);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_OFFLOAD_H_
