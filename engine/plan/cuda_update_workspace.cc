#include "engine/plan/cuda_update_workspace.h"

#include <algorithm>

#include "engine/plan/cuda_workspace.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr int64_t kAlignment = 256;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t value) { return CeilDiv(value, kAlignment) * kAlignment; }

// kernels/cuda/flat.h: SumSquares' f64 per block; a tensor is cut into chunks of as many elements.
constexpr int64_t kChunk = 4096;
int64_t SumSquaresBytes(int64_t elements) { return CeilDiv(elements, kChunk) * 8; }

// runtime/cuda_backend/cuda_ops_optimizers.cc: two squares of the smaller side, a copy of the
// matrix, whose place the norm's sums take first, and the norm.
int64_t OrthogonalizeBytes(const FlatGroup& group) {
  int64_t most = 0;
  for (const GroupParameter& p : group.parameters) {
    const int64_t side = std::min(p.shape[0], p.shape[1]);
    const int64_t copy = std::max(p.elements * 4, SumSquaresBytes(p.elements));
    most = std::max(most, 2 * RoundUp(side * side * 4) + RoundUp(copy) + RoundUp(8));
  }
  return most + RoundUp(kCudaProductScratch);
}

}  // namespace

int64_t CudaUpdateWorkspaceBytes(const std::vector<FlatGroup>& groups, const graph::Op& op,
                                 const PlanOptions& options) {
  switch (op.kind) {
    case OpKind::kGradNorm:
      return SumSquaresBytes(groups[op.attributes.group].padded_elements / options.world);
    case OpKind::kUpdateNorms: {  // lamb_muon.h: a pair of f64 per chunk; each tensor may cut one
      const FlatGroup& group = groups[op.attributes.group];
      return (CeilDiv(group.shard_elements, kChunk) +
              static_cast<int64_t>(group.parameters.size())) *
             16;
    }
    case OpKind::kOrthogonalize:
      return OrthogonalizeBytes(groups[op.attributes.group]);
    default:
      return 0;
  }
}

}  // namespace milepost::plan
