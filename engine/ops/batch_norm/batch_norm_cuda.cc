#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/ops/batch_norm/batch_norm_binding.h"
#include "engine/ops/batch_norm/batch_norm_cuda_kernel.h"
#include "engine/plan/statistics.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/image_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CudaBinding;
using runtime::DeviceCall;
using runtime::DeviceCallOf;
using runtime::ImageRows;
using runtime::StepContext;

absl::Status RequireSums(const CudaBinding& b, const ImageRows& size) {
  return b.RequireWorkspace(cuda::BatchNormWorkspaceBytes(size.rows, size.channels));
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormSumsOf(const CudaBinding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(RequireSums(b, size));
  return [x = b.Input<T>(0), sums = b.Output<double>(0), size, workspace = b.Workspace(),
          stream = b.stream()](const StepContext&) {
    return cuda::BatchNormSums(x, size.rows, size.channels, sums, workspace, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormOf(const CudaBinding& b) {
  const ImageRows size(b.InputShape(0));
  const kernels::BatchNormForwardArgs<T> args = BatchNormForwardArgsOf<T>(b);
  return [args, size, stream = b.stream()](const StepContext&) {
    return cuda::BatchNormForward(args, size.rows, size.channels, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormBackwardSumsOf(const CudaBinding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(RequireSums(b, size));
  kernels::BatchNormBackwardArgs<T> args = BatchNormBackwardArgsOf<T>(b);
  args.dy2 = b.Input<T>(6);
  args.y = b.Input<T>(7);
  return [args, size, sums = b.Output<double>(0), dgamma = b.Output<float>(1),
          dbeta = b.Output<float>(2), g = b.Output<T>(3), accumulation = b.OutputAccumulation(1),
          workspace = b.Workspace(), stream = b.stream()](const StepContext& context) {
    return cuda::BatchNormBackwardSums(args, size.rows, size.channels, g, sums, dgamma, dbeta,
                                       accumulation.At(context), workspace, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormBackwardOf(const CudaBinding& b) {
  const ImageRows size(b.InputShape(0));
  return [args = BatchNormBackwardArgsOf<T>(b), size, sums = b.Input<double>(6),
          count = size.rows * StatisticsRanks(b), dx = b.Output<T>(0),
          stream = b.stream()](const StepContext&) {
    return cuda::BatchNormBackward(args, sums, count, size.rows, size.channels, dx, stream);
  };
}

absl::StatusOr<BoundOp> BatchNormStatisticsOf(const CudaBinding& b) {
  const cuda::BatchNormStatisticsArgs args = {
      .sums = b.Input<double>(0),
      .count = b.attributes().image.rows * StatisticsRanks(b),
      .channels = b.InputShape(0)[1],
      .epsilon = b.attributes().epsilon,
      .momentum = b.attributes().image.momentum,
      .mean = b.Output<float>(0),
      .rstd = b.Output<float>(1),
      .running_mean = b.Output<float>(2),
      .running_variance = b.Output<float>(3),
      .batches = b.Output<int64_t>(4)};
  return [args, stream = b.stream()](const StepContext&) {
    return cuda::BatchNormStatistics(args, stream);
  };
}

absl::StatusOr<BoundOp> BatchNormRunningOf(const CudaBinding& b) {
  return [running_mean = b.Input<float>(0), running_variance = b.Input<float>(1),
          mean = b.Output<float>(0), rstd = b.Output<float>(1), channels = b.InputShape(0)[0],
          epsilon = b.attributes().epsilon, stream = b.stream()](const StepContext&) {
    return cuda::BatchNormRunning(running_mean, running_variance, channels, epsilon, mean, rstd,
                                  stream);
  };
}

absl::StatusOr<BoundOp> BindReduceStatistics(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  // Sums of two f64 for each channel, moved as they are.
  const int64_t floats = 2 * graph::Elements(b.OutputShape(0));
  return [call, from = b.Input<float>(0), sums = b.Output<float>(0), floats](const StepContext&) {
    if (from != sums) {
      MP_RETURN_IF_ERROR(kernels::cuda::Cast(from, floats, sums, call.stream));
    }
    return call.Enqueue();
  };
}

absl::StatusOr<BoundOp> BindAverageStatistics(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  float* statistics = BufferOf<float>(b, b.plan.statistics);
  const int64_t count = plan::LayOutStatistics(b.program.graph).f32_elements;
  const float share = 1.0F / static_cast<float>(b.plan.options.world);
  return [call, statistics, count, share](const StepContext&) {
    MP_RETURN_IF_ERROR(call.Enqueue());
    return kernels::cuda::Scale(statistics, count, share, call.stream);
  };
}

}  // namespace

constinit const CudaOp kBatchNormSums = {.bind = MP_F32_OR_BF16(BatchNormSumsOf)};
constinit const CudaOp kReduceStatistics = {.bind = BindReduceStatistics};
constinit const CudaOp kBatchNormStatistics = {.bind = BatchNormStatisticsOf};
constinit const CudaOp kBatchNormRunning = {.bind = BatchNormRunningOf};
constinit const CudaOp kBatchNorm = {.bind = MP_F32_OR_BF16(BatchNormOf)};
constinit const CudaOp kBatchNormBackwardSums = {.bind = MP_F32_OR_BF16(BatchNormBackwardSumsOf)};
constinit const CudaOp kBatchNormBackward = {.bind = MP_F32_OR_BF16(BatchNormBackwardOf)};
constinit const CudaOp kAverageStatistics = {.bind = BindAverageStatistics};

}  // namespace milepost::ops::gpu
