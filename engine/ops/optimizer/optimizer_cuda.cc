// The optimizers on flat shards. What a step changes, and whether it updates at all, the kernels
// read from device memory (step_control.h, UpdateControl).
#include "engine/runtime/cpu/host_optimizer.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"
#include "engine/runtime/offload/state_disk.h"

namespace milepost::ops::gpu {
namespace {

using runtime::BoundOp;
using runtime::CudaBinding;

// Offloaded: on the host, of what lies there.
absl::StatusOr<BoundOp> BindOptimizer(const CudaBinding& b) {
  if (b.planned.stream == plan::Stream::kHost) {
    return runtime::AfterItsState(b, runtime::BindDecidingHostOptimizer(b, b.memory.host_threads));
  }
  return runtime::CudaOptimizerOf(runtime::GroupOf(b).optimizer).bind(b);
}

}  // namespace

constinit const CudaOp kOptimizer = {.bind = BindOptimizer};

}  // namespace milepost::ops::gpu

namespace milepost::runtime {

const CudaOptimizer& CudaOptimizerOf(plan::Optimizer optimizer) {
  static constexpr const CudaOptimizer* kOptimizers[] = {
#define MP_OPTIMIZER(name, type) &optim::gpu::k##name,
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER
  };
  return *kOptimizers[static_cast<int>(optimizer)];
}

}  // namespace milepost::runtime
