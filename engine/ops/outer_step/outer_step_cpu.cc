#include "engine/kernels/cpu/elementwise.h"
#include "engine/ops/outer_step/outer_step_binding.h"
#include "engine/ops/outer_step/outer_step_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

absl::StatusOr<BoundOp> BindKeepAnchors(const Binding& b) {
  return [shard = OuterShard(b)](const StepContext&) {
    kernels::KeepAnchors(shard.master, shard.elements, shard.anchor);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindOuterUpdate(const Binding& b) {
  return [shard = OuterShard(b)](const StepContext&) {
    const int64_t n = shard.elements;
    for (float* state : shard.states) kernels::Scale(state, n, shard.step.share);
    kernels::OuterUpdate(shard.step, n, shard.master, shard.anchor, shard.momentum);
    if (shard.parameters != nullptr) kernels::CastToBf16(shard.master, n, shard.parameters);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kKeepAnchors = {.bind = BindKeepAnchors};
constinit const CpuOp kAverageIslands = {.bind = runtime::BindCall};
constinit const CpuOp kOuterUpdate = {.bind = BindOuterUpdate};

}  // namespace milepost::ops::cpu
