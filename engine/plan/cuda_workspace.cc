#include "engine/plan/cuda_workspace.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr int64_t kAlignment = 256;

int64_t RoundUp(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

// runtime/cuda_backend/device_communicator.h: what a rounded sum sends, in bf16.
int64_t RoundedSumBytes(const FlatGroup& group, const graph::Op& op, const PlanOptions& options) {
  if (options.grad_reduce != graph::DType::kBF16 || options.world == 1) return 0;
  const bool of_shard = op.kind == OpKind::kReduceReplicas;
  return RoundUp(2 * (of_shard ? group.shard_elements : group.padded_elements));
}

}  // namespace

int64_t CudaWorkspaceBytes(const graph::Graph&, const std::vector<FlatGroup>& groups,
                           const graph::Op& op, const PlanOptions& options) {
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
    case OpKind::kLmHeadLogits:
      return RoundUp(kCudaProductScratch);
    case OpKind::kReduceGradients:
    case OpKind::kReduceReplicas:
      return RoundedSumBytes(groups[op.attributes.group], op, options);
    default:
      return 0;
  }
}

}  // namespace milepost::plan
