#include <algorithm>
#include <cmath>

#include "common/status_macros.h"
#include "engine/ops/batch_norm/batch_norm_binding.h"
#include "engine/ops/batch_norm/batch_norm_cpu_kernel.h"
#include "engine/plan/statistics.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/image_ops.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundCall;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CallOf;
using runtime::ImageRows;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> BatchNormSumsOf(const Binding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::BatchNormWorkspaceBytes(size.rows, size.channels)));
  return [x = b.Input<T>(0), sums = b.Output<double>(0), size,
          workspace = b.Workspace()](const StepContext&) {
    kernels::BatchNormSums<T>(x, size.rows, size.channels, sums, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormOf(const Binding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::BatchNormWorkspaceBytes(size.rows, size.channels)));
  const kernels::BatchNormForwardArgs<T> args = BatchNormForwardArgsOf<T>(b);
  return [args, size, workspace = b.Workspace()](const StepContext&) {
    kernels::BatchNormForward<T>(args, size.rows, size.channels, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormBackwardSumsOf(const Binding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::BatchNormWorkspaceBytes(size.rows, size.channels)));
  kernels::BatchNormBackwardArgs<T> args = BatchNormBackwardArgsOf<T>(b);
  args.dy2 = b.Input<T>(6);
  args.y = b.Input<T>(7);
  return [args, size, sums = b.Output<double>(0), dgamma = b.Output<float>(1),
          dbeta = b.Output<float>(2), g = b.Output<T>(3), accumulation = b.OutputAccumulation(1),
          workspace = b.Workspace()](const StepContext& context) {
    kernels::BatchNormBackwardSums<T>(args, size.rows, size.channels, g, sums, dgamma, dbeta,
                                      accumulation.At(context), workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormBackwardOf(const Binding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::BatchNormWorkspaceBytes(size.rows, size.channels)));
  return [args = BatchNormBackwardArgsOf<T>(b), size, sums = b.Input<double>(6),
          count = size.rows * StatisticsRanks(b), dx = b.Output<T>(0),
          workspace = b.Workspace()](const StepContext&) {
    kernels::BatchNormBackward<T>(args, sums, count, size.rows, size.channels, dx, workspace);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindReduceStatistics(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  return [call, from = b.Input<double>(0), sums = b.Output<double>(0),
          count = graph::Elements(b.OutputShape(0))](const StepContext& context) {
    if (from != sums) std::copy_n(from, count, sums);
    return call.Run(context);
  };
}

absl::StatusOr<BoundOp> BindBatchNormStatistics(const Binding& b) {
  return [sums = b.Input<double>(0), mean = b.Output<float>(0), rstd = b.Output<float>(1),
          running_mean = b.Output<float>(2), running_variance = b.Output<float>(3),
          batches = b.Output<int64_t>(4), channels = b.InputShape(0)[1],
          count = b.attributes().image.rows * StatisticsRanks(b), epsilon = b.attributes().epsilon,
          momentum = b.attributes().image.momentum](const StepContext&) {
    kernels::BatchNormStatistics(sums, count, channels, epsilon, mean, rstd);
    kernels::BatchNormUpdateRunning(sums, count, channels, momentum, running_mean,
                                    running_variance);
    ++*batches;
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindBatchNormRunning(const Binding& b) {
  return [running_mean = b.Input<float>(0), running_variance = b.Input<float>(1),
          mean = b.Output<float>(0), rstd = b.Output<float>(1), channels = b.InputShape(0)[0],
          epsilon = b.attributes().epsilon](const StepContext&) {
    std::copy_n(running_mean, channels, mean);
    for (int64_t c = 0; c < channels; ++c) {
      rstd[c] = static_cast<float>(1 / std::sqrt(running_variance[c] + epsilon));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindAverageStatistics(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  float* statistics = BufferOf<float>(b, b.plan.statistics);
  const int64_t count = plan::LayOutStatistics(b.program.graph).f32_elements;
  const float share = 1.0F / static_cast<float>(b.plan.options.world);
  return [call, statistics, count, share](const StepContext& context) {
    MP_RETURN_IF_ERROR(call.Run(context));
    for (int64_t i = 0; i < count; ++i) statistics[i] *= share;
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kBatchNormSums = {.bind = MP_F32_OR_BF16(BatchNormSumsOf)};
constinit const CpuOp kReduceStatistics = {.bind = BindReduceStatistics};
constinit const CpuOp kBatchNormStatistics = {.bind = BindBatchNormStatistics};
constinit const CpuOp kBatchNormRunning = {.bind = BindBatchNormRunning};
constinit const CpuOp kBatchNorm = {.bind = MP_F32_OR_BF16(BatchNormOf)};
constinit const CpuOp kBatchNormBackwardSums = {.bind = MP_F32_OR_BF16(BatchNormBackwardSumsOf)};
constinit const CpuOp kBatchNormBackward = {.bind = MP_F32_OR_BF16(BatchNormBackwardOf)};
constinit const CpuOp kAverageStatistics = {.bind = BindAverageStatistics};

}  // namespace milepost::ops::cpu
