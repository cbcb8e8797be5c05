#include "engine/ops/convolution/convolution.h"

#include <algorithm>

#include "common/round_up.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/contract/alignment.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::Elements;
using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Shape;
using graph::ValueId;

absl::Status ConvolutionGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  const ValueId w = op.inputs[1];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  // The weight's gradient first: then x is dead and dx can take its bytes.
  backward.Emit(op, OpKind::kConvolutionBackwardWeights, {x, dy}, {backward.ParameterGradient(w)});
  if (!backward.Differentiable(x)) return absl::OkStatus();
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kConvolutionBackwardData, {dy, w}, {{.value = dx}});
  return backward.AddGradient(op, x, dx);
}

// Every element of the output is a sum over the input channels of a window.
double WindowFlops(const Shape& outputs, const Shape& w) {
  return 2 * static_cast<double>(Elements(outputs)) * static_cast<double>(Elements(w) / w[0]);
}

Cost ConvolutionCost(const Graph& graph, const Op& op) {
  return {.flops = WindowFlops(graph.values[op.outputs[0].value].shape,
                               graph.values[op.inputs[1]].shape),
          .bytes = OperandBytes(graph, op)};
}

// dy, w.
Cost DataGradientCost(const Graph& graph, const Op& op) {
  return {.flops = WindowFlops(graph.values[op.inputs[0]].shape, graph.values[op.inputs[1]].shape),
          .bytes = OperandBytes(graph, op)};
}

// x, dy.
Cost FilterGradientCost(const Graph& graph, const Op& op) {
  return {.flops = WindowFlops(graph.values[op.inputs[1]].shape,
                               graph.values[op.outputs[0].value].shape),
          .bytes = OperandBytes(graph, op)};
}

// The operands of a convolution or of one of its gradients.
struct Images {
  explicit Images(const WorkspaceContext& c)
      : forward(c.op.kind == OpKind::kConvolution),
        data(c.op.kind == OpKind::kConvolutionBackwardData),
        x(c.graph.values[data ? c.op.outputs[0].value : c.op.inputs[0]]),
        y(c.graph.values[forward ? c.op.outputs[0].value : c.op.inputs[data ? 0 : 1]]),
        kernel(c.op.attributes.image.kernel) {}
  bool forward, data;
  const graph::Value& x;
  const graph::Value& y;
  int64_t kernel;
};

// ops/convolution/convolution_cpu_kernel.h: weights, or their gradient, in oneDNN's layout,
// channels filled up to whole blocks; then its own scratch, as measured with oneDNN 2.6: at most
// five bytes per element of an image of input and of output for each thread and, for the weights'
// gradient, that in f32.
int64_t ConvolutionWorkspace(const WorkspaceContext& c) {
  constexpr int64_t kBlock = 64;
  constexpr int64_t kFixed = 256 << 10;
  constexpr int64_t kWithTiles = 64 << 10;
  const Images images(c);
  const graph::Shape& x = images.x.shape;
  const graph::Shape& y = images.y.shape;
  const int64_t kernel = images.kernel * images.kernel;
  const int64_t weights = RoundUp(x[3], kBlock) * RoundUp(y[3], kBlock) * kernel;
  const int64_t element = ByteSize(c.Input(0).dtype);
  const bool gradient = !images.forward && !images.data;
  int64_t scratch = c.threads * kFixed;
  if (!images.forward) {
    scratch += c.threads * 5 * (graph::Elements(x) / x[0] + RoundUp(y[3], kBlock) * y[1] * y[2]);
  }
  if (gradient) scratch += c.threads * 4 * weights;
  // What oneDNN 2.6 was found to want besides on a CPU with AMX, at most, for ResNet-18 and 50 on 1
  // to 32 threads.
  if (element < 4) scratch += c.threads * kWithTiles;
  if (element < 4 && gradient) {
    const int64_t pixels = graph::Elements(x) / x[0] + RoundUp(y[3], kBlock) * y[1] * y[2];
    scratch += c.threads * 14 * std::min(weights, pixels);
  }
  // Without AVX-512 oneDNN gathers what a 1x1 kernel with a stride reads, an image for each thread.
  if (images.kernel == 1 && c.op.attributes.image.stride > 1) {
    scratch += c.threads * 4 * y[1] * y[2] * x[3];
  }
  int64_t packed = weights * (gradient ? 4 : element);
  if (element <
      4) {  // a CPU without bf16 products widens (ops/convolution/convolution_widened_cpu_kernel.h)
    const int64_t elements = graph::Elements(x) / x[0] + graph::Elements(y) / y[0];
    const int64_t at_once = std::clamp<int64_t>((2 << 20) / elements, 1, x[0]);
    packed = 4 * (weights + at_once * elements + x[3] * y[3] * kernel) + 3 * LineAligned(1);
  }
  return std::max(packed + scratch, c.min_convolution_bytes);
}

// What cuDNN 9.19's engines without differences from run to run, and in fp32 without TF32, were
// found to want on an H200 for all of ResNet-50's convolutions, 32 and 256 images: weights in
// another layout or parts of their gradient, in fp32 at most, and little more; images with a number
// of channels that is no multiple of 8 filled up to one; in fp32 images in another layout.
int64_t LibraryWorkspace(const Images& images, int64_t weights) {
  constexpr int64_t kLittle = int64_t{8} << 20;
  int64_t bytes = weights * 4 + kLittle;
  for (const graph::Value* value : {&images.x, &images.y}) {
    const int64_t channels = value->shape[3];
    if (channels % 8 == 0 && value->dtype != DType::kF32) continue;
    bytes += graph::Elements(value->shape) / channels * CeilDiv(channels, 8) * 8 *
             ByteSize(value->dtype);
  }
  return bytes;
}

// The weights' gradient in the inputs' type, then the library's scratch.
int64_t GpuConvolutionWorkspace(const WorkspaceContext& c) {
  const Images images(c);
  const int64_t weights = images.x.shape[3] * images.y.shape[3] * images.kernel * images.kernel;
  const bool gradient = !images.forward && !images.data;
  const int64_t before = gradient ? DeviceAligned(weights * ByteSize(images.x.dtype)) : 0;
  return std::max(before + LibraryWorkspace(images, weights), c.min_convolution_bytes);
}

}  // namespace

constinit const OpDefinition kConvolution = {.gradient = ConvolutionGradient,
                                             .cost = ConvolutionCost,
                                             .cpu_workspace = ConvolutionWorkspace,
                                             .gpu_workspace = GpuConvolutionWorkspace};
constinit const OpDefinition kConvolutionBackwardData = {.cost = DataGradientCost,
                                                         .cpu_workspace = ConvolutionWorkspace,
                                                         .gpu_workspace = GpuConvolutionWorkspace};
constinit const OpDefinition kConvolutionBackwardWeights = {
    .cost = FilterGradientCost,
    .cpu_workspace = ConvolutionWorkspace,
    .gpu_workspace = GpuConvolutionWorkspace};

ValueId Convolution(Builder& b, absl::string_view name, ValueId x, ValueId weight,
                    const graph::WindowOptions& options) {
  const Shape in = b.ImageShape(name, "x", x);
  if (in.empty()) return kNoValue;
  const int64_t channels = b.Dimension(name, "weight", weight, 0);
  const int64_t kernel = b.Dimension(name, "weight", weight, 3);
  if (!b.Expect(name, "weight", weight, b.compute_dtype(), {channels, in[3], kernel, kernel})) {
    return kNoValue;
  }
  Shape out = b.WindowedShape(name, in, kernel, options);
  if (out.empty()) return kNoValue;
  out[3] = channels;
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), out);
  Op& op = b.AddOp(OpKind::kConvolution, {x, weight});
  op.attributes.image.kernel = kernel;
  op.attributes.image.stride = options.stride;
  op.attributes.image.padding = options.padding;
  op.outputs = {{.value = y}};
  return y;
}

}  // namespace milepost::ops
