// Batch normalisation over rows of channels, x[rows, channels] (an image batch in NHWC order: a row
// is a pixel), in steps between which other ranks may take part; T in {float, bf16}.
//
//   BatchNormSums(x, rows, channels, sums, workspace);           // sums over this rank's rows
//   // synchronised: all-reduce `sums`; count: rows of all ranks
//   BatchNormStatistics(sums, count, channels, epsilon, mean, rstd);
//   BatchNormUpdateRunning(sums, count, channels, momentum, running_mean, running_variance);
//   BatchNormForward<float>({.x = x, .mean = mean, ...}, rows, channels, workspace);
//
//   BatchNormBackwardSums<float>(args, rows, channels, sums, workspace);   // all-reduce again
//   BatchNormBackward<float>(args, rows, channels, workspace);
//
// Sums are formed in fp64 from fp32 sums over short runs of rows, in an order that depends on the
// number of rows only: the same bits on any number of threads. A `workspace` is 64-byte aligned and
// of BatchNormWorkspaceBytes, whichever the call.
#ifndef MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/batch_norm/batch_norm_contract.h"

namespace milepost::kernels {

// sums[c] = sum of x[., c]; sums[channels + c] = sum of its squares.
template <typename T>
void BatchNormSums(const T* x, int64_t rows, int64_t channels, double* sums, void* workspace);

// mean = sum / count, rstd = 1 / sqrt(variance + epsilon), with the biased variance.
void BatchNormStatistics(const double* sums, int64_t count, int64_t channels, double epsilon,
                         float* mean, float* rstd);

// running = (1 - momentum) running + momentum batch, with the unbiased variance, as torch has it. A
// channel whose statistics are not finite keeps its running ones.
void BatchNormUpdateRunning(const double* sums, int64_t count, int64_t channels, double momentum,
                            float* running_mean, float* running_variance);

// y = (x - mean) rstd gamma + beta (+ residual), then max(0, y) where `relu`.
template <typename T>
void BatchNormForward(const BatchNormForwardArgs<T>& args, int64_t rows, int64_t channels,
                      void* workspace);

// Through the ReLU: g = (dy + dy2) where y > 0, else 0; written to `g` (may be dy or dy2; null:
// not wanted). sums[c] = sum of g, sums[channels + c] = sum of g (x - mean) rstd: the gradients of
// beta and gamma. Neither of dbeta and dgamma is null; `accumulate`: added to.
template <typename T>
void BatchNormBackwardSums(const BatchNormBackwardArgs<T>& args, int64_t rows, int64_t channels,
                           T* g, double* sums, float* dgamma, float* dbeta, bool accumulate,
                           void* workspace);

// dx = gamma rstd (g - sum(g)/count - xhat sum(g xhat)/count). `args` as above, of which dy2 must
// be null: where there is one, dy is g and relu false. dx may be x or dy.
template <typename T>
void BatchNormBackward(const BatchNormBackwardArgs<T>& args, const double* sums, int64_t count,
                       int64_t rows, int64_t channels, T* dx, void* workspace);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CPU_KERNEL_H_
