// Batch normalisation over rows of channels, x[rows, channels], in steps between which other ranks
// may take part; semantics and arguments of the CPU's (batch_norm_cpu_kernel.h), whose bits the
// normalised values and their gradients have where the statistics are the same. T in {float, bf16};
// all device memory, 16-byte aligned.
//
//   MP_RETURN_IF_ERROR(BatchNormSums(x, rows, channels, sums, workspace, stream));
//   // synchronised: all-reduce `sums`; count: rows of all ranks
//   MP_RETURN_IF_ERROR(BatchNormStatistics({.sums = sums, .count = count, ...}, stream));
//   MP_RETURN_IF_ERROR(BatchNormForward<bf16>({.x = x, ...}, rows, channels, stream));
//
// Sums are formed in fp64 from fp32 sums over short runs of rows, in an order that depends on rows
// and channels only.
#ifndef MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/batch_norm/batch_norm_contract.h"

namespace milepost::kernels::cuda {

// sums[c] = sum of x[., c]; sums[channels + c] = sum of its squares.
template <typename T>
absl::Status BatchNormSums(const T* x, int64_t rows, int64_t channels, double* sums,
                           void* workspace, cudaStream_t stream);

// mean and rstd of the batch; the running statistics move towards it, and *batches counts it.
struct BatchNormStatisticsArgs {
  const double* sums = nullptr;
  int64_t count = 0;
  int64_t channels = 0;
  double epsilon = 0;
  double momentum = 0;
  float* mean = nullptr;
  float* rstd = nullptr;
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  int64_t* batches = nullptr;
};
absl::Status BatchNormStatistics(const BatchNormStatisticsArgs& args, cudaStream_t stream);

// mean and rstd from the running statistics.
absl::Status BatchNormRunning(const float* running_mean, const float* running_variance,
                              int64_t channels, double epsilon, float* mean, float* rstd,
                              cudaStream_t stream);

template <typename T>
absl::Status BatchNormForward(const BatchNormForwardArgs<T>& args, int64_t rows, int64_t channels,
                              cudaStream_t stream);

template <typename T>
absl::Status BatchNormBackwardSums(const BatchNormBackwardArgs<T>& args, int64_t rows,
                                   int64_t channels, T* g, double* sums, float* dgamma,
                                   float* dbeta, bool accumulate, void* workspace,
                                   cudaStream_t stream);
template <typename T>
absl::Status BatchNormBackward(const BatchNormBackwardArgs<T>& args, const double* sums,
                               int64_t count, int64_t rows, int64_t channels, T* dx,
                               cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CUDA_KERNEL_H_
