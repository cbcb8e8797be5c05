// cudaStream_t without CUDA's headers, so that the launch functions can be declared to code that is
// compiled without them.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_STREAM_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_STREAM_H_

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;  // as cuda_runtime.h has it

namespace milepost::kernels::cuda {

// Blocks of a launch, and the bytes of shared memory that it asks for beyond its arrays.
struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t shared_bytes = 0;
};

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_STREAM_H_
