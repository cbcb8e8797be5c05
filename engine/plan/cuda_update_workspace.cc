#include "engine/plan/cuda_update_workspace.h"

#include <algorithm>

#include "common/round_up.h"
#include "engine/plan/cuda_workspace.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// kernels/cuda/flat.h: SumSquares' f64 per block; a tensor is cut into chunks of as many elements.
constexpr int64_t kElementsPerSum = 4096;
int64_t CudaSumSquaresBytes(int64_t elements) { return CeilDiv(elements, kElementsPerSum) * 8; }

// ops/optimizer/lamb_muon_cuda.cc: two squares of the smaller side, a copy of the
// matrix, whose place the norm's sums take first, where these are rounded a square of sums, and the
// norm.
int64_t CudaOrthogonalizeBytes(const FlatGroup& group) {
  int64_t most = 0;
  for (const GroupParameter& p : group.parameters) {
    const int64_t side = std::min(p.shape[0], p.shape[1]);
    const int64_t element = ByteSize(group.product_dtype);
    const int64_t copy = std::max(p.elements * element, CudaSumSquaresBytes(p.elements));
    const int64_t sums = element == 4 ? 0 : DeviceAligned(side * side * 4);
    most = std::max(most, 2 * DeviceAligned(side * side * element) + DeviceAligned(copy) + sums +
                              DeviceAligned(8));
  }
  return most + DeviceAligned(kCudaProductScratch);
}

}  // namespace

int64_t CudaUpdateWorkspaceBytes(const std::vector<FlatGroup>& groups, const graph::Op& op,
                                 const PlanOptions& options) {
  switch (op.kind) {
    case OpKind::kGradNorm:
      return CudaSumSquaresBytes(groups[op.attributes.group].padded_elements / options.world);
    case OpKind::kUpdateNorms: {  // lamb_muon.h: a pair of f64 per chunk; each tensor may cut one
      const FlatGroup& group = groups[op.attributes.group];
      return (CeilDiv(group.shard_elements, kElementsPerSum) +
              static_cast<int64_t>(group.parameters.size())) *
             16;
    }
    case OpKind::kOrthogonalize:
      return CudaOrthogonalizeBytes(groups[op.attributes.group]);
    default:
      return 0;
  }
}

}  // namespace milepost::plan
