#include "engine/plan/cuda_workspace.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr int64_t kAlignment = 256;

int64_t RoundUp(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

int64_t CudaWorkspaceBytes(const graph::Graph&, const std::vector<FlatGroup>&, const graph::Op& op,
                           const PlanOptions&) {
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
    case OpKind::kLmHeadLogits:
      return RoundUp(kCudaProductScratch);
    default:
      return 0;
  }
}

}  // namespace milepost::plan
