// Internal to backends: the update of optimizer state that lies in host memory. The CPU makes it,
// whatever the device.
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_HOST_OPTIMIZER_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_HOST_OPTIMIZER_H_

#include "absl/status/statusor.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::runtime {

// kOptimizer of an offloaded group: the calling thread and its OpenMP threads update the host's
// master, m and v by its copy of the gradient, and leave the parameters for kParametersToDevice. In
// a step that is skipped (context.skip_update) they leave them as they were. The same kernels as
// the CPU's, so the same bits.
absl::StatusOr<BoundOp> BindHostOptimizer(const OpBinding& b);

// The same where the context's skip_update and clip_factor are not set: they are made of the plan's
// host_scalars. Uses `threads` OpenMP threads whatever thread calls it.
absl::StatusOr<BoundOp> BindDecidingHostOptimizer(const OpBinding& b, int threads);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_HOST_OPTIMIZER_H_
