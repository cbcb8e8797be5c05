// Norms and updates on the GPU.
#include "absl/strings/str_cat.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"

namespace milepost::runtime {

absl::StatusOr<BoundOp> BindUpdateOp(const CudaBinding& b) {
  return absl::UnimplementedError(
      absl::StrCat("the GPU has no kernel for ", graph::Name(b.planned.op.kind)));
}

std::vector<kernels::cuda::Product> OrthogonalizeProducts(const plan::FlatGroup&) { return {}; }
int64_t OrthogonalizeBytesBeforeScratch(const plan::FlatGroup&) { return 0; }

}  // namespace milepost::runtime
