// Convolutions, batch norms, pools, images and the classifier's loss on the CPU.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/kernels/cpu/batch_norm.h"
#include "engine/kernels/cpu/classifier.h"
#include "engine/kernels/cpu/label_smoothing.h"
#include "engine/kernels/cpu/pooling.h"
#include "engine/runtime/cpu_ops.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using kernels::ConvolutionPass;
using kernels::ConvolutionSpec;

// Rows and channels of images.
struct ImageRows {
  explicit ImageRows(const graph::Shape& shape)
      : channels(shape[3]), rows(graph::Elements(shape) / channels) {}
  int64_t channels;
  int64_t rows;
};

template <typename T>
absl::StatusOr<BoundOp> NormalizeImagesOf(const Binding& b) {
  const graph::ImageAttributes& a = b.attributes().image;
  std::vector<T> table(256 * graph::kImageChannels);
  for (size_t i = 0; i < table.size(); ++i) {
    const double value =
        (static_cast<double>(i % 256) / 255 - a.mean[i / 256]) / a.deviation[i / 256];
    table[i] = kernels::FromFloat<T>(static_cast<float>(value));
  }
  return [x = b.Input<uint8_t>(0), y = b.Output<T>(0), table = std::move(table),
          pixels = ImageRows(b.InputShape(0)).rows](const StepContext&) {
    kernels::LookUpChannels<T>(x, pixels, graph::kImageChannels, table.data(), y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormSumsOf(const Binding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      static_cast<int64_t>(kernels::BatchNormWorkspaceBytes(size.rows, size.channels))));
  return [x = b.Input<T>(0), sums = b.Output<double>(0), size,
          workspace = b.Workspace()](const StepContext&) {
    kernels::BatchNormSums<T>(x, size.rows, size.channels, sums, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormOf(const Binding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      static_cast<int64_t>(kernels::BatchNormWorkspaceBytes(size.rows, size.channels))));
  const kernels::BatchNormForwardArgs<T> args{.x = b.Input<T>(0),
                                              .mean = b.Input<float>(1),
                                              .rstd = b.Input<float>(2),
                                              .gamma = b.Input<T>(3),
                                              .beta = b.Input<T>(4),
                                              .residual = b.Input<T>(5),
                                              .relu = b.attributes().image.relu,
                                              .y = b.Output<T>(0)};
  return [args, size, workspace = b.Workspace()](const StepContext&) {
    kernels::BatchNormForward<T>(args, size.rows, size.channels, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
kernels::BatchNormBackwardArgs<T> BackwardArgs(const Binding& b) {
  return {.x = b.Input<T>(0),
          .mean = b.Input<float>(1),
          .rstd = b.Input<float>(2),
          .gamma = b.Input<T>(3),
          .beta = b.Input<T>(4),
          .dy = b.Input<T>(5),
          .relu = b.attributes().image.relu};
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormBackwardSumsOf(const Binding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      static_cast<int64_t>(kernels::BatchNormWorkspaceBytes(size.rows, size.channels))));
  kernels::BatchNormBackwardArgs<T> args = BackwardArgs<T>(b);
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

// Over how many ranks' rows statistics go.
int64_t StatisticsRanks(const Binding& b) {
  return b.attributes().image.synchronised ? b.plan.options.world : 1;
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormBackwardOf(const Binding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      static_cast<int64_t>(kernels::BatchNormWorkspaceBytes(size.rows, size.channels))));
  return [args = BackwardArgs<T>(b), size, sums = b.Input<double>(6),
          count = size.rows * StatisticsRanks(b), dx = b.Output<T>(0),
          workspace = b.Workspace()](const StepContext&) {
    kernels::BatchNormBackward<T>(args, sums, count, size.rows, size.channels, dx, workspace);
    return absl::OkStatus();
  };
}

kernels::PoolSpec PoolOf(const Binding& b, const graph::Shape& images) {
  const graph::ImageAttributes& a = b.attributes().image;
  return {.batch = images[0],
          .height = images[1],
          .width = images[2],
          .channels = images[3],
          .kernel = a.kernel,
          .stride = a.stride,
          .padding = a.padding};
}

template <typename T>
absl::StatusOr<BoundOp> MaxPoolOf(const Binding& b) {
  return [spec = PoolOf(b, b.InputShape(0)), x = b.Input<T>(0), y = b.Output<T>(0),
          winners = b.Output<uint8_t>(1)](const StepContext&) {
    kernels::MaxPoolForward<T>(spec, x, y, winners);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> MaxPoolBackwardOf(const Binding& b) {
  return [spec = PoolOf(b, b.OutputShape(0)), winners = b.Input<uint8_t>(0), dy = b.Input<T>(1),
          dy2 = b.Input<T>(2), dx = b.Output<T>(0)](const StepContext&) {
    kernels::MaxPoolBackward<T>(spec, winners, dy, dy2, dx);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> AveragePoolOf(const Binding& b) {
  const bool forward = b.planned.op.kind == OpKind::kAveragePool;
  const graph::Shape& images = forward ? b.InputShape(0) : b.OutputShape(0);
  return [forward, batch = images[0], pixels = images[1] * images[2], channels = images[3],
          in = b.Input<T>(0), out = b.Output<T>(0)](const StepContext&) {
    if (forward) {
      kernels::AveragePoolForward<T>(in, batch, pixels, channels, out);
    } else {
      kernels::AveragePoolBackward<T>(in, batch, pixels, channels, out);
    }
    return absl::OkStatus();
  };
}

template <typename T>
struct Classifier {
  void Run(const StepContext& context) const {
    kernels::LossSum sum;
    if (smoothing > 0) {
      sum.loss = kernels::SmoothingLoss<T>(logits, targets, rows, classes, smoothing);
    }
    if (gradient == nullptr) {
      kernels::ClassifierForward<T>(logits, targets, rows, classes, workspace, &sum);
    } else {
      const float scale = context.gradient_factors[head];
      if (gradient != logits) std::copy_n(logits, rows * classes, gradient);
      kernels::ClassifierForwardBackward<T>(gradient, targets, rows, classes, scale, workspace,
                                            &sum);
      if (smoothing > 0) {
        kernels::SmoothGradient<T>(gradient, targets, rows, classes, smoothing, scale);
      }
    }
    if (!accumulation.At(context)) std::fill(sums, sums + graph::kLossSums, 0.0);
    sums[graph::kLossSum] += sum.loss;
    sums[graph::kLossTargets] += static_cast<double>(sum.targets);
    sums[graph::kLossCorrect] += static_cast<double>(sum.correct);
  }

  const T* logits;
  const int32_t* targets;
  int64_t rows;
  int64_t classes;
  double smoothing;
  int32_t head;
  double* sums;
  Binding::Accumulation accumulation;
  T* gradient;  // null: the loss alone
  char* workspace;
};

template <typename T>
absl::StatusOr<BoundOp> ClassifierLossOf(const Binding& b) {
  const Classifier<T> classifier{.logits = b.Input<T>(0),
                                 .targets = b.Input<int32_t>(1),
                                 .rows = b.InputShape(0)[0],
                                 .classes = b.InputShape(0)[1],
                                 .smoothing = b.attributes().label_smoothing,
                                 .head = b.attributes().head,
                                 .sums = b.Output<double>(0),
                                 .accumulation = b.OutputAccumulation(0),
                                 .gradient = b.Output<T>(1),
                                 .workspace = b.Workspace()};
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(static_cast<int64_t>(kernels::ClassifierWorkspaceBytes(classifier.rows))));
  return [classifier](const StepContext& context) {
    classifier.Run(context);
    return absl::OkStatus();
  };
}

ConvolutionPass PassOf(OpKind kind) {
  return kind == OpKind::kConvolution               ? ConvolutionPass::kForward
         : kind == OpKind::kConvolutionBackwardData ? ConvolutionPass::kBackwardData
                                                    : ConvolutionPass::kBackwardWeights;
}

ConvolutionSpec SpecOf(const graph::Graph& graph, const graph::Op& op) {
  const auto value = [&](graph::ValueId id) -> const graph::Value& { return graph.values[id]; };
  const bool forward = op.kind == OpKind::kConvolution;
  const bool data = op.kind == OpKind::kConvolutionBackwardData;
  const graph::Value& x = value(data ? op.outputs[0].value : op.inputs[0]);
  const graph::Value& y = value(forward ? op.outputs[0].value : op.inputs[data ? 0 : 1]);
  const graph::ImageAttributes& a = op.attributes.image;
  return {.batch = x.shape[0],
          .height = x.shape[1],
          .width = x.shape[2],
          .in = x.shape[3],
          .out = y.shape[3],
          .kernel = a.kernel,
          .stride = a.stride,
          .padding = a.padding,
          .type = x.dtype == graph::DType::kBF16 ? kernels::DType::kBf16 : kernels::DType::kF32};
}

absl::StatusOr<BoundOp> NoKernel(const Binding& b) {
  return absl::UnimplementedError(absl::StrCat(graph::Name(b.planned.op.kind), ": the CPU has no ",
                                               "kernel for ",
                                               graph::Name(b.plan.options.compute_dtype)));
}

}  // namespace

absl::StatusOr<int64_t> ConvolutionWorkspaceBytes(const graph::Graph& graph, const graph::Op& op,
                                                  kernels::ConvolutionCache& convolutions) {
  switch (op.kind) {
    case OpKind::kConvolution:
    case OpKind::kConvolutionBackwardData:
    case OpKind::kConvolutionBackwardWeights: {
      MP_ASSIGN_OR_RETURN(const size_t bytes,
                          convolutions.WorkspaceBytes(SpecOf(graph, op), PassOf(op.kind)));
      return static_cast<int64_t>(bytes);
    }
    default:
      return 0;
  }
}

absl::StatusOr<BoundOp> BindConvolution(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const int64_t bytes,
                      ConvolutionWorkspaceBytes(b.program.graph, b.planned.op, b.convolutions));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(bytes));
  const ConvolutionSpec spec = SpecOf(b.program.graph, b.planned.op);
  kernels::ConvolutionCache* cache = &b.convolutions;
  const char* first = b.Input<char>(0);
  const char* second = b.Input<char>(1);
  char* out = b.Output<char>(0);
  char* workspace = b.Workspace();
  switch (b.planned.op.kind) {
    case OpKind::kConvolution:
      return
          [=](const StepContext&) { return cache->Forward(spec, first, second, out, workspace); };
    case OpKind::kConvolutionBackwardData:
      return [=](const StepContext&) {
        return cache->BackwardData(spec, first, second, out, workspace);
      };
    default:
      return [=, accumulation = b.OutputAccumulation(0)](const StepContext& context) {
        return cache->BackwardWeights(spec, first, second, accumulation.At(context),
                                      reinterpret_cast<float*>(out), workspace);
      };
  }
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

// Images have no kernels on halves: a spec that asks for them is refused.
#define MP_BIND_F32_OR_BF16(binder, b)                                               \
  ((b).plan.options.compute_dtype == graph::DType::kBF16  ? binder<kernels::bf16>(b) \
   : (b).plan.options.compute_dtype == graph::DType::kF32 ? binder<float>(b)         \
                                                          : NoKernel(b))

absl::StatusOr<BoundOp> BindNormalizeImages(const Binding& b) {
  return MP_BIND_F32_OR_BF16(NormalizeImagesOf, b);
}
absl::StatusOr<BoundOp> BindBatchNormSums(const Binding& b) {
  return MP_BIND_F32_OR_BF16(BatchNormSumsOf, b);
}
absl::StatusOr<BoundOp> BindBatchNorm(const Binding& b) {
  return MP_BIND_F32_OR_BF16(BatchNormOf, b);
}
absl::StatusOr<BoundOp> BindBatchNormBackwardSums(const Binding& b) {
  return MP_BIND_F32_OR_BF16(BatchNormBackwardSumsOf, b);
}
absl::StatusOr<BoundOp> BindBatchNormBackward(const Binding& b) {
  return MP_BIND_F32_OR_BF16(BatchNormBackwardOf, b);
}
absl::StatusOr<BoundOp> BindMaxPool(const Binding& b) { return MP_BIND_F32_OR_BF16(MaxPoolOf, b); }
absl::StatusOr<BoundOp> BindMaxPoolBackward(const Binding& b) {
  return MP_BIND_F32_OR_BF16(MaxPoolBackwardOf, b);
}
absl::StatusOr<BoundOp> BindAveragePool(const Binding& b) {
  return MP_BIND_F32_OR_BF16(AveragePoolOf, b);
}
absl::StatusOr<BoundOp> BindClassifierLoss(const Binding& b) {
  return MP_BIND_F32_OR_BF16(ClassifierLossOf, b);
}

}  // namespace milepost::runtime
