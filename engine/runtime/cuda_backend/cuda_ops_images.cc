// Convolutions, batch norms, pools, images and the classifier's loss on the GPU.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/batch_norm.h"
#include "engine/kernels/cuda/classifier.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/pooling.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"

namespace milepost::runtime {
namespace {

namespace cuda = kernels::cuda;
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
absl::StatusOr<BoundOp> NormalizeImagesOf(const CudaBinding& b) {
  const graph::ImageAttributes& a = b.attributes().image;
  std::vector<T> table(256 * graph::kImageChannels);
  for (size_t i = 0; i < table.size(); ++i) {
    const double value =
        (static_cast<double>(i % 256) / 255 - a.mean[i / 256]) / a.deviation[i / 256];
    table[i] = kernels::FromFloat<T>(static_cast<float>(value));
  }
  MP_ASSIGN_OR_RETURN(const T* uploaded, b.services.tables->Upload(table));
  return [x = b.Input<uint8_t>(0), y = b.Output<T>(0), uploaded,
          pixels = ImageRows(b.InputShape(0)).rows, stream = b.stream()](const StepContext&) {
    return cuda::LookUpChannels(x, pixels, graph::kImageChannels, uploaded, y, stream);
  };
}

// ---- batch norms ----

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
  const kernels::BatchNormForwardArgs<T> args{.x = b.Input<T>(0),
                                              .mean = b.Input<float>(1),
                                              .rstd = b.Input<float>(2),
                                              .gamma = b.Input<T>(3),
                                              .beta = b.Input<T>(4),
                                              .residual = b.Input<T>(5),
                                              .relu = b.attributes().image.relu,
                                              .y = b.Output<T>(0)};
  return [args, size, stream = b.stream()](const StepContext&) {
    return cuda::BatchNormForward(args, size.rows, size.channels, stream);
  };
}

template <typename T>
kernels::BatchNormBackwardArgs<T> BackwardArgs(const CudaBinding& b) {
  return {.x = b.Input<T>(0),
          .mean = b.Input<float>(1),
          .rstd = b.Input<float>(2),
          .gamma = b.Input<T>(3),
          .beta = b.Input<T>(4),
          .dy = b.Input<T>(5),
          .relu = b.attributes().image.relu};
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormBackwardSumsOf(const CudaBinding& b) {
  const ImageRows size(b.InputShape(0));
  MP_RETURN_IF_ERROR(RequireSums(b, size));
  kernels::BatchNormBackwardArgs<T> args = BackwardArgs<T>(b);
  args.dy2 = b.Input<T>(6);
  args.y = b.Input<T>(7);
  return [args, size, sums = b.Output<double>(0), dgamma = b.Output<float>(1),
          dbeta = b.Output<float>(2), g = b.Output<T>(3), accumulation = b.OutputAccumulation(1),
          workspace = b.Workspace(), stream = b.stream()](const StepContext& context) {
    return cuda::BatchNormBackwardSums(args, size.rows, size.channels, g, sums, dgamma, dbeta,
                                       accumulation.At(context), workspace, stream);
  };
}

// Over how many ranks' rows statistics go.
int64_t StatisticsRanks(const CudaBinding& b) {
  return b.attributes().image.synchronised ? b.plan.options.world : 1;
}

template <typename T>
absl::StatusOr<BoundOp> BatchNormBackwardOf(const CudaBinding& b) {
  const ImageRows size(b.InputShape(0));
  return [args = BackwardArgs<T>(b), size, sums = b.Input<double>(6),
          count = size.rows * StatisticsRanks(b), dx = b.Output<T>(0),
          stream = b.stream()](const StepContext&) {
    return cuda::BatchNormBackward(args, sums, count, size.rows, size.channels, dx, stream);
  };
}

BoundOp BatchNormStatisticsOf(const CudaBinding& b) {
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

BoundOp BatchNormRunningOf(const CudaBinding& b) {
  return [running_mean = b.Input<float>(0), running_variance = b.Input<float>(1),
          mean = b.Output<float>(0), rstd = b.Output<float>(1), channels = b.InputShape(0)[0],
          epsilon = b.attributes().epsilon, stream = b.stream()](const StepContext&) {
    return cuda::BatchNormRunning(running_mean, running_variance, channels, epsilon, mean, rstd,
                                  stream);
  };
}

// ---- pools ----

kernels::PoolSpec PoolOf(const CudaBinding& b, const graph::Shape& images) {
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
absl::StatusOr<BoundOp> MaxPoolOf(const CudaBinding& b) {
  return [spec = PoolOf(b, b.InputShape(0)), x = b.Input<T>(0), y = b.Output<T>(0),
          winners = b.Output<uint8_t>(1), stream = b.stream()](const StepContext&) {
    return cuda::MaxPoolForward(spec, x, y, winners, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> MaxPoolBackwardOf(const CudaBinding& b) {
  return [spec = PoolOf(b, b.OutputShape(0)), winners = b.Input<uint8_t>(0), dy = b.Input<T>(1),
          dy2 = b.Input<T>(2), dx = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return cuda::MaxPoolBackward(spec, winners, dy, dy2, dx, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> AveragePoolOf(const CudaBinding& b) {
  const bool forward = b.planned.op.kind == OpKind::kAveragePool;
  const graph::Shape& images = forward ? b.InputShape(0) : b.OutputShape(0);
  return [forward, batch = images[0], pixels = images[1] * images[2], channels = images[3],
          in = b.Input<T>(0), out = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return forward ? cuda::AveragePoolForward(in, batch, pixels, channels, out, stream)
                   : cuda::AveragePoolBackward(in, batch, pixels, channels, out, stream);
  };
}

// ---- the classifier ----

template <typename T>
absl::StatusOr<BoundOp> ClassifierLossOf(const CudaBinding& b) {
  const bool backward = b.planned.op.kind == OpKind::kClassifierLossBackward;
  // The kernels work in place; the loss alone only reads the logits.
  T* logits = const_cast<T*>(b.Input<T>(0));
  cuda::ClassifierArgs<T> args = {.logits = backward ? b.Output<T>(1) : logits,
                                  .targets = b.Input<int32_t>(1),
                                  .rows = b.InputShape(0)[0],
                                  .vocabulary = b.InputShape(0)[1],
                                  .smoothing = static_cast<float>(b.attributes().label_smoothing),
                                  .scale = &b.control()->gradient_factors[b.attributes().head],
                                  .sums = b.Output<double>(0)};
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::ClassifierWorkspaceBytes(args.rows)));
  return [args, logits, backward, accumulation = b.OutputAccumulation(0), workspace = b.Workspace(),
          stream = b.stream()](const StepContext& context) {
    cuda::ClassifierArgs<T> now = args;
    now.accumulate = accumulation.At(context);
    if (!backward) return cuda::ClassifierLoss(now, workspace, stream);
    if (logits != args.logits) {
      MP_RETURN_IF_ERROR(cuda::Cast(logits, args.rows * args.vocabulary, args.logits, stream));
    }
    return cuda::ClassifierLossAndGradient(now, workspace, stream);
  };
}

// ---- convolutions ----

// The weights' gradient comes in the activations' type, in the workspace, and is added to the fp32
// one, or becomes it.
template <typename T>
struct WeightGradient {
  absl::Status Run(bool accumulate) const {
    MP_RETURN_IF_ERROR(graphs->Convolution(spec, ConvolutionPass::kBackwardWeights, {x, dy, part},
                                           scratch, stream));
    const int64_t n = spec.WeightElements();
    return accumulate ? cuda::Accumulate(part, n, dw, stream) : cuda::Cast(part, n, dw, stream);
  }

  cuda::NeuralGraphs* graphs;
  ConvolutionSpec spec;
  const void* x;
  const void* dy;
  T* part;
  void* scratch;
  float* dw;
  cudaStream_t stream;
};

template <typename T>
BoundOp WeightGradientOf(const CudaBinding& b, const ConvolutionSpec& spec) {
  const int64_t before = ConvolutionBytesBeforeScratch(b.program.graph, b.planned.op);
  const WeightGradient<T> gradient = {.graphs = b.services.graphs,
                                      .spec = spec,
                                      .x = b.Input<char>(0),
                                      .dy = b.Input<char>(1),
                                      .part = reinterpret_cast<T*>(b.Workspace()),
                                      .scratch = b.Workspace() + before,
                                      .dw = b.Output<float>(0),
                                      .stream = b.stream()};
  return [gradient, accumulation = b.OutputAccumulation(0)](const StepContext& context) {
    return gradient.Run(accumulation.At(context));
  };
}

template <typename T>
absl::StatusOr<BoundOp> ConvolutionOf(const CudaBinding& b) {
  const ConvolutionSpec spec = ConvolutionSpecOf(b.program.graph, b.planned.op);
  const ConvolutionPass pass = ConvolutionPassOf(b.planned.op.kind);
  MP_ASSIGN_OR_RETURN(const int64_t bytes, b.services.graphs->WorkspaceBytes(spec, pass));
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(ConvolutionBytesBeforeScratch(b.program.graph, b.planned.op) + bytes));
  if (pass == ConvolutionPass::kBackwardWeights) return WeightGradientOf<T>(b, spec);
  return [graphs = b.services.graphs, spec, pass, first = b.Input<char>(0),
          second = b.Input<char>(1), result = b.Output<char>(0), workspace = b.Workspace(),
          stream = b.stream()](const StepContext&) {
    return graphs->Convolution(spec, pass, {first, second, result}, workspace, stream);
  };
}

// ---- by type ----

absl::StatusOr<BoundOp> NoKernel(const CudaBinding& b) {
  return absl::UnimplementedError(absl::StrCat(graph::Name(b.planned.op.kind),
                                               ": the GPU has no kernel for ",
                                               graph::Name(b.plan.options.compute_dtype)));
}

template <typename T>
absl::StatusOr<BoundOp> ImageOpOf(const CudaBinding& b) {
  switch (b.planned.op.kind) {
    case OpKind::kNormalizeImages:
      return NormalizeImagesOf<T>(b);
    case OpKind::kConvolution:
    case OpKind::kConvolutionBackwardData:
    case OpKind::kConvolutionBackwardWeights:
      return ConvolutionOf<T>(b);
    case OpKind::kBatchNormSums:
      return BatchNormSumsOf<T>(b);
    case OpKind::kBatchNormStatistics:
      return BatchNormStatisticsOf(b);
    case OpKind::kBatchNormRunning:
      return BatchNormRunningOf(b);
    case OpKind::kBatchNorm:
      return BatchNormOf<T>(b);
    case OpKind::kBatchNormBackwardSums:
      return BatchNormBackwardSumsOf<T>(b);
    case OpKind::kBatchNormBackward:
      return BatchNormBackwardOf<T>(b);
    case OpKind::kMaxPool:
      return MaxPoolOf<T>(b);
    case OpKind::kMaxPoolBackward:
      return MaxPoolBackwardOf<T>(b);
    case OpKind::kAveragePool:
    case OpKind::kAveragePoolBackward:
      return AveragePoolOf<T>(b);
    case OpKind::kClassifierLoss:
    case OpKind::kClassifierLossBackward:
      return ClassifierLossOf<T>(b);
    default:
      return absl::UnimplementedError(
          absl::StrCat("the GPU has no kernel for ", graph::Name(b.planned.op.kind)));
  }
}

}  // namespace

ConvolutionPass ConvolutionPassOf(OpKind kind) {
  return kind == OpKind::kConvolution               ? ConvolutionPass::kForward
         : kind == OpKind::kConvolutionBackwardData ? ConvolutionPass::kBackwardData
                                                    : ConvolutionPass::kBackwardWeights;
}

ConvolutionSpec ConvolutionSpecOf(const graph::Graph& graph, const graph::Op& op) {
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
          .type = KernelDType(x.dtype)};
}

int64_t ConvolutionBytesBeforeScratch(const graph::Graph& graph, const graph::Op& op) {
  if (op.kind != OpKind::kConvolutionBackwardWeights) return 0;
  return AlignScratch(ConvolutionSpecOf(graph, op).WeightElements() *
                      milepost::graph::ByteSize(graph.values[op.inputs[0]].dtype));
}

// Images have no kernels on halves: a spec that asks for them is refused.
absl::StatusOr<BoundOp> BindImageOp(const CudaBinding& b) {
  switch (b.plan.options.compute_dtype) {
    case graph::DType::kF32:
      return ImageOpOf<float>(b);
    case graph::DType::kBF16:
      return ImageOpOf<kernels::bf16>(b);
    default:
      return NoKernel(b);
  }
}

}  // namespace milepost::runtime
