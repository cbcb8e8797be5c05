#include "engine/ops/batch_norm/batch_norm_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/batch_norm/batch_norm_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

auto Launcher(cudaStream_t stream, const char* name) {
  return [=](const auto& kernel) { return Launch(kernel, kernel.grid(), stream, name); };
}

}  // namespace

template <typename T>
absl::Status BatchNormSums(const T* x, int64_t rows, int64_t channels, double* sums,
                           void* workspace, cudaStream_t stream) {
  return RunBatchNormSums(x, rows, channels, sums, workspace, Launcher(stream, "BatchNormSums"));
}

absl::Status BatchNormStatistics(const BatchNormStatisticsArgs& args, cudaStream_t stream) {
  return Launcher(stream, "BatchNormStatistics")(BatchNormStatisticsKernel{args});
}

absl::Status BatchNormRunning(const float* running_mean, const float* running_variance,
                              int64_t channels, double epsilon, float* mean, float* rstd,
                              cudaStream_t stream) {
  return Launcher(stream, "BatchNormRunning")(
      BatchNormRunningKernel{running_mean, running_variance, channels, epsilon, mean, rstd});
}

template <typename T>
absl::Status BatchNormForward(const BatchNormForwardArgs<T>& args, int64_t rows, int64_t channels,
                              cudaStream_t stream) {
  return RunBatchNormForward(args, rows, channels, Launcher(stream, "BatchNormForward"));
}

template <typename T>
absl::Status BatchNormBackwardSums(const BatchNormBackwardArgs<T>& args, int64_t rows,
                                   int64_t channels, T* g, double* sums, float* dgamma,
                                   float* dbeta, bool accumulate, void* workspace,
                                   cudaStream_t stream) {
  return RunBatchNormBackwardSums(args, rows, g, {channels, accumulate, sums, dgamma, dbeta},
                                  workspace, Launcher(stream, "BatchNormBackwardSums"));
}

template <typename T>
absl::Status BatchNormBackward(const BatchNormBackwardArgs<T>& args, const double* sums,
                               int64_t count, int64_t rows, int64_t channels, T* dx,
                               cudaStream_t stream) {
  return RunBatchNormBackward(args, sums, count, rows, channels, dx,
                              Launcher(stream, "BatchNormBackward"));
}

#define MP_INSTANTIATE(T)                                                                          \
  template absl::Status BatchNormSums(const T*, int64_t, int64_t, double*, void*, cudaStream_t);   \
  template absl::Status BatchNormForward(const BatchNormForwardArgs<T>&, int64_t, int64_t,         \
                                         cudaStream_t);                                            \
  template absl::Status BatchNormBackwardSums(const BatchNormBackwardArgs<T>&, int64_t, int64_t,   \
                                              T*, double*, float*, float*, bool, void*,            \
                                              cudaStream_t);                                       \
  template absl::Status BatchNormBackward(const BatchNormBackwardArgs<T>&, const double*, int64_t, \
                                          int64_t, int64_t, T*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);

}  // namespace milepost::kernels::cuda
