#include <algorithm>
#include <cmath>

#include "common/status_macros.h"
#include "engine/optim/adamw/adamw_params_cpu.h"
#include "engine/optim/lamb/lamb_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/cpu_optimizer.h"
#include "engine/runtime/executor/group_ops.h"

namespace milepost::optim::cpu {
namespace {

// By how much LAMB's step is longer than AdamW's: |tensor| / |update|. Vectors (biases, norms) take
// AdamW's.
float TrustRatio(const runtime::Segment& segment, const double* norms) {
  const double* pair = norms + 2 * segment.tensor;
  if (!segment.decay || !(pair[0] > 0) || !(pair[1] > 0)) return 1;
  return static_cast<float>(std::sqrt(pair[0] / pair[1]));
}

template <typename T>
void LambUpdate(const CpuUpdate<T>& u) {
  kernels::AdamWParams params = AdamWParamsOf(u);
  params.learning_rate *= TrustRatio(u.segment, u.norms);
  kernels::LambApply<T>(params, u.n, u.master, u.states[0], u.states[1], u.copy);
}

}  // namespace

constinit const CpuOptimizer kLamb = MP_CPU_OPTIMIZER(LambUpdate);

}  // namespace milepost::optim::cpu

namespace milepost::ops::cpu {
namespace {

using runtime::BindCall;
using runtime::Binding;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::GroupOf;
using runtime::NormsOf;
using runtime::Segment;
using runtime::SegmentsOf;
using runtime::ShardBegin;
using runtime::ShardGradient;
using runtime::ShardMaster;
using runtime::StepContext;

absl::StatusOr<BoundOp> BindUpdateNorms(const Binding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const int64_t count = group.shard_elements;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(kernels::LambWorkspaceBytes(count)));
  return [segments = SegmentsOf(group, ShardBegin(b), count), p = ShardMaster(b),
          m = BufferOf<float>(b, group.state_buffers[0]),
          v = BufferOf<float>(b, group.state_buffers[1]), g = ShardGradient(b), norms = NormsOf(b),
          tensors = group.parameters.size(), workspace = b.Workspace()](const StepContext& c) {
    if (c.skip_update) return absl::OkStatus();
    std::fill(norms, norms + 2 * tensors, 0.0);
    for (const Segment& s : segments) {
      const kernels::AdamWParams params = {.beta1 = c.beta1,
                                           .beta2 = c.beta2,
                                           .epsilon = c.epsilon,
                                           .weight_decay = s.WeightDecay(c),
                                           .gradient_scale = c.clip_factor,
                                           .step = c.update};
      kernels::LambMoments(params, s.end - s.begin, p + s.begin, m + s.begin, v + s.begin,
                           g + s.begin, workspace, norms + 2 * s.tensor);
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kUpdateNorms = {.bind = BindUpdateNorms};
constinit const CpuOp kReduceUpdateNorms = {.bind = BindCall};

}  // namespace milepost::ops::cpu
