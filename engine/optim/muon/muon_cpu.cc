#include <algorithm>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/optim/muon/muon_binding.h"
#include "engine/optim/muon/muon_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/cpu_optimizer.h"
#include "engine/runtime/executor/group_ops.h"

namespace milepost::optim::cpu {
namespace {

template <typename T>
void MuonUpdate(const CpuUpdate<T>& u) {
  const float rate = u.LearningRate();
  const auto shrink = static_cast<float>(1 - double{rate} * u.WeightDecay());
  const float step = rate * runtime::MuonFactor(u.group.parameters[u.segment.tensor]);
  kernels::MuonApply<T>(shrink, step, u.n, u.master, u.gradient, u.copy);
}

}  // namespace

constinit const CpuOptimizer kMuon = MP_CPU_OPTIMIZER(MuonUpdate);

}  // namespace milepost::optim::cpu

namespace milepost::ops::cpu {
namespace {

using kernels::MatmulSpec;
using runtime::BindCall;
using runtime::Binding;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::GroupOf;
using runtime::MuonMatricesBefore;
using runtime::ShardBegin;
using runtime::ShardGradient;
using runtime::StepContext;

float* UpdateOf(const Binding& b) { return BufferOf<float>(b, GroupOf(b).update_buffer); }

absl::StatusOr<BoundOp> BindMuonMomentum(const Binding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  return [n = group.shard_elements, m = BufferOf<float>(b, group.state_buffers[0]),
          g = ShardGradient(b), u = UpdateOf(b) + ShardBegin(b)](const StepContext& c) {
    if (c.skip_update) return absl::OkStatus();
    kernels::MuonMomentum(
        {.momentum = c.momentum, .nesterov = c.nesterov, .gradient_scale = c.clip_factor}, n, m, g,
        u);
    return absl::OkStatus();
  };
}

std::vector<kernels::MatmulSpec> OrthogonalizeMatmulSpecs(const plan::FlatGroup& group) {
  std::vector<kernels::MatmulSpec> specs;
  for (const plan::GroupParameter& p : group.parameters) {
    for (const kernels::MatmulSpec& spec : kernels::OrthogonalizeProducts(MuonMatrixOf(group, p))) {
      if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
    }
  }
  return specs;
}

std::vector<MatmulSpec> MuonProducts(const plan::StepPlan& plan, const plan::Program&,
                                     const graph::Op& op) {
  return OrthogonalizeMatmulSpecs(plan.groups[op.attributes.group]);
}

absl::StatusOr<BoundOp> BindOrthogonalize(const Binding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  int64_t scratch = 0;
  for (const kernels::MatmulSpec& spec : OrthogonalizeMatmulSpecs(group)) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    scratch = std::max(scratch, static_cast<int64_t>(bytes));
  }
  MP_RETURN_IF_ERROR(b.RequireWorkspace(b.BytesBeforeScratch() + scratch));
  struct Matrix {
    kernels::MuonMatrix shape;
    float* data;
    bool mine;
  };
  const int64_t owners = b.plan.options.MatrixOwners();
  std::vector<Matrix> matrices;
  int64_t index = MuonMatricesBefore(b);
  for (const plan::GroupParameter& p : group.parameters) {
    matrices.push_back(
        {MuonMatrixOf(group, p), UpdateOf(b) + p.begin, index++ % owners == b.rank % owners});
  }
  return [matmuls = &b.matmuls, matrices = std::move(matrices),
          workspace = b.Workspace()](const StepContext& c) -> absl::Status {
    if (c.skip_update) return absl::OkStatus();
    for (const Matrix& matrix : matrices) {
      if (!matrix.mine) {
        std::fill_n(matrix.data, matrix.shape.elements(), 0.0F);
        continue;
      }
      MP_RETURN_IF_ERROR(kernels::Orthogonalize(matrix.shape, plan::kNewtonSchulzSteps, *matmuls,
                                                matrix.data, workspace));
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kMuonMomentum = {.bind = BindMuonMomentum};
constinit const CpuOp kGatherUpdates = {.bind = BindCall};
constinit const CpuOp kOrthogonalize = {.bind = BindOrthogonalize, .products = MuonProducts};
constinit const CpuOp kScatterUpdates = {.bind = BindCall};

}  // namespace milepost::ops::cpu
