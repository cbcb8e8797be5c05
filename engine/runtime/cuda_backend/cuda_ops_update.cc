// Norms and the decision about the update; the updates themselves are in cuda_ops_optimizers.cc.
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"
#include "engine/runtime/cuda_backend/device_call.h"
#include "engine/runtime/group_ops.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
namespace cuda = kernels::cuda;

template <typename T>
absl::StatusOr<BoundOp> GradNormOf(const CudaBinding& b) {
  const int64_t count = GroupOf(b).padded_elements / b.plan.options.world;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::SumSquaresWorkspaceBytes(count)));
  const int64_t slice = b.rank / b.plan.options.Shards();  // within the shard
  return [gradient = ShardGradient<T>(b) + count * slice, count,
          slot = Scalars(b) + b.plan.ReducedScalars() + b.attributes().group,
          workspace = b.Workspace(), stream = b.stream()](const StepContext&) {
    return cuda::SumSquares(gradient, count, slot, workspace, stream);
  };
}

// The ranks' sum and the decision follow on the stream of the sums: what waits for the scalars
// waits for the decision too.
absl::StatusOr<BoundOp> BindReduceScalars(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  std::vector<int32_t> slots;  // of the groups' norms, in group order
  for (size_t g = 0; g < b.plan.groups.size(); ++g) {
    if (b.plan.groups[g].frozen) continue;
    slots.push_back(b.plan.ReducedScalars() + static_cast<int32_t>(g));
  }
  MP_ASSIGN_OR_RETURN(const int32_t* table, b.services.tables->Upload(slots));
  return [call, table, count = static_cast<int64_t>(slots.size()), scalars = Scalars(b),
          control = b.control(), update = b.memory.update](const StepContext&) {
    double* norm = scalars + plan::kNormScalar;
    MP_RETURN_IF_ERROR(cuda::SumScalars(scalars, table, count, norm, &control->stop,
                                        scalars + plan::kStopScalar, call.stream));
    MP_RETURN_IF_ERROR(call.Enqueue());
    return cuda::DecideUpdate(norm, &control->clip, update, call.stream);
  };
}

}  // namespace

absl::StatusOr<BoundOp> BindUpdateOp(const CudaBinding& b) {
  switch (b.planned.op.kind) {
    case OpKind::kGradNorm:
      return b.plan.options.RoundsGradients() ? GradNormOf<kernels::bf16>(b) : GradNormOf<float>(b);
    case OpKind::kReduceScalars:
      return BindReduceScalars(b);
    case OpKind::kOptimizer:
      return BindOptimizer(b);
    case OpKind::kUpdateNorms:
      return BindUpdateNorms(b);
    case OpKind::kMuonMomentum:
      return BindMuonMomentum(b);
    case OpKind::kOrthogonalize:
      return BindOrthogonalize(b);
    default:
      return absl::UnimplementedError(
          absl::StrCat(graph::Name(b.planned.op.kind), " is not an op of the update"));
  }
}

}  // namespace milepost::runtime
