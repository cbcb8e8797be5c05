// Initial values of parameters, T in {float, bf16, f16}: the numbers of the CPU's NormalInit and
// UniformInit (cpu/random.h), to the bit where the CPU fuses multiplications with sums, rounded to
// the nearest T. Element i of `out` has number `first` + i of the stream. Pointers are device
// memory, aligned to T; fastest where `out` is aligned to 16 bytes and `first` a multiple of 8.
// Asynchronous on `stream`; errors are those of the launch.
//
//   MP_RETURN_IF_ERROR(NormalInit(weights, n, 0.02F, PhiloxKey(seed, tensor), 0, stream));
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_INITIAL_VALUES_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_INITIAL_VALUES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status NormalInit(T* out, int64_t n, float stddev, RandomKey key, uint64_t first,
                        cudaStream_t stream);
// Above -bound and at most bound.
template <typename T>
absl::Status UniformInit(T* out, int64_t n, float bound, RandomKey key, uint64_t first,
                         cudaStream_t stream);

template <typename T>
absl::Status ConstantInit(T* out, int64_t n, float value, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_INITIAL_VALUES_H_
