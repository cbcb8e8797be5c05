// Work over flat buffers that hold many tensors, in one launch: the buffer is cut into chunks that
// lie within one tensor each, and a block takes a chunk.
//
//   // copied to the device:
//   std::vector<FlatChunk> chunks = MakeChunks({{0, 1000}, {1024, 50000}});
//
// Tensors begin at multiples of 4 elements (plan::kParameterAlignment is 32).
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_FLAT_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_FLAT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/contract/sums.h"

namespace milepost::kernels::cuda {

struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
};

struct FlatChunk {
  int64_t begin = 0;  // within the buffer
  int32_t count = 0;  // at most kChunkElements
  int32_t segment = 0;
};

// Of ranges in any order; chunk.segment is the range's index.
inline std::vector<FlatChunk> MakeChunks(const std::vector<FlatRange>& ranges) {
  std::vector<FlatChunk> chunks;
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (int64_t at = ranges[i].begin; at < ranges[i].end; at += kChunkElements) {
      const int64_t count = std::min(kChunkElements, ranges[i].end - at);
      chunks.push_back({at, static_cast<int32_t>(count), static_cast<int32_t>(i)});
    }
  }
  return chunks;
}

// *sum = sum of x[i]^2 in fp64: blocks of 4096 elements, then the blocks, in an order that depends
// on n alone. Not finite exactly if some x[i] is not. `workspace`: SumSquaresWorkspaceBytes.
template <typename T>  // float or bf16
absl::Status SumSquares(const T* x, int64_t n, double* sum, void* workspace, cudaStream_t stream);

// *sum = sum of values[which[i]], i < count, in that order, and *stop = *stop_asked.
absl::Status SumScalars(const double* values, const int32_t* which, int64_t count, double* sum,
                        const double* stop_asked, double* stop, cudaStream_t stream);

// What the update multiplies gradients by, or that it is skipped.
struct UpdateControl {
  float gradient_scale = 1;
  uint32_t skip = 0;
};
struct ClipArgs {
  double loss_scale = 1;
  double max_norm = 0;  // 0: no clipping
};
// From *sum_squares (device), the reduced gradient's and still with the loss scale in it: unscales
// and clips as optim::ClipByNorm; skips where the norm is not finite. `args`, `control`: device.
absl::Status DecideUpdate(const double* sum_squares, const ClipArgs* args, UpdateControl* control,
                          cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_FLAT_H_
