// The products of experts on a GPU: of rows that lie by expert, each with its expert's weights. How
// many rows an expert has stands in device memory; the host never waits for it. Device memory; T in
// {float, bf16, f16}. Asynchronous on `stream`.
//
// 16-bit numbers are multiplied on tensor cores, sums are fp32; of fp32 both are fp32. A row's
// result depends on the row and the weights alone, to the bit, whatever rows lie beside it.
#ifndef MILEPOST_ENGINE_OPS_EXPERTS_GROUPED_PRODUCT_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_EXPERTS_GROUPED_PRODUCT_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// Rows [offsets[i], offsets[i + 1]) are of expert i % experts.
struct ExpertSegments {
  const int32_t* offsets = nullptr;  // [segments + 1]
  int64_t segments = 0;
  int64_t experts = 0;  // at most 1024
  int64_t rows = 0;     // room for; those behind the last segment are neither read nor written
};

// y[rows, columns] of y_stride numbers a row = x[rows, depth] of x_stride times the weights.
// `weights`: in device memory, where each expert's begin. `packs`: all sizes are multiples
// of 16 bytes, and all addresses aligned to that.
template <typename T>
struct GroupedRows {
  ExpertSegments segments;
  const T* x = nullptr;
  int64_t x_stride = 0;
  int64_t depth = 0;
  const T* const* weights = nullptr;
  T* y = nullptr;
  int64_t y_stride = 0;
  int64_t columns = 0;
  bool add = false;  // to what y holds
  bool packs = false;
};

// y = x W^T, weights [columns, depth].
template <typename T>
absl::Status GroupedForward(const GroupedRows<T>& product, cudaStream_t stream);
// y = x W, weights [depth, columns].
template <typename T>
absl::Status GroupedBackwardInput(const GroupedRows<T>& product, cudaStream_t stream);

// Each expert's gradient [height, width] = dy^T x of its rows; without rows it is 0.
template <typename T>
struct GroupedWeights {
  ExpertSegments segments;
  const T* dy = nullptr;
  int64_t dy_stride = 0;
  int64_t height = 0;
  const T* x = nullptr;
  int64_t x_stride = 0;
  int64_t width = 0;
  float* const* gradients = nullptr;
  bool add = false;
  bool packs = false;
};

template <typename T>
absl::Status GroupedBackwardWeight(const GroupedWeights<T>& product, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_EXPERTS_GROUPED_PRODUCT_CUDA_KERNEL_H_
