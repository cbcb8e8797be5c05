// What gradients that travel as factors need beside matrix products, on a GPU. The same numbers as
// the CPU's (compression_cpu_kernel.h), but that sums in fp64 are added up in another order.
// Pointers are device memory. Asynchronous on `stream`; errors are those of the launch.
#ifndef MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// `count` rows of n elements, count <= n.
struct FactorRows {
  float* rows = nullptr;
  int64_t n = 0;
  int64_t count = 0;
  RandomKey key = {};  // of the numbers that a row is drawn from
};

// Each of `matrices`, a table of that many, is made orthonormal by itself: MakeOrthonormal. A row
// that is drawn has normal numbers, those of elements (position->step * count + row) * n on.
absl::Status MakeOrthonormal(const FactorRows* matrices, int64_t matrix_count,
                             const StepPosition* position, cudaStream_t stream);

// out += factor * x; both 16-byte aligned.
absl::Status AddScaled(float factor, const float* x, int64_t n, float* out, cudaStream_t stream);

// One tensor of several that are copied: to = from.
struct CopiedTensor {
  const float* from = nullptr;
  float* to = nullptr;
  int64_t elements = 0;
};
// `most`: elements of the largest one.
absl::Status CopyTensors(const CopiedTensor* tensors, int64_t tensor_count, int64_t most,
                         cudaStream_t stream);

// x = 0, where the step is skipped; 16-byte aligned.
absl::Status ZeroIfSkipped(const UpdateControl* control, int64_t n, float* x, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CUDA_KERNEL_H_
