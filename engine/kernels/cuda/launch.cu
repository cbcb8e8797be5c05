#include "absl/strings/str_cat.h"
#include "engine/kernels/cuda/launch-inl.h"

namespace milepost::kernels::cuda {

absl::Status LaunchError(const char* name, const Grid& grid, cudaError_t error) {
  return absl::InternalError(absl::StrCat("kernel ", name, " of ", grid.x, " x ", grid.y,
                                          " blocks and ", grid.shared_bytes,
                                          " bytes of shared memory: ", cudaGetErrorString(error)));
}

}  // namespace milepost::kernels::cuda
