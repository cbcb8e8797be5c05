#include "engine/plan/cuda_image_workspace.h"

#include <algorithm>

#include "common/round_up.h"
#include "engine/plan/cuda_workspace.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// kernels/cuda/batch_norm_kernels.h, TileOfSums: two f64 per channel and block of rows.
int64_t BatchNormSumsBytes(const graph::Shape& images) {
  const int64_t channels = images[3];
  const int64_t rows = graph::Elements(images) / channels;
  const int64_t tiles = CeilDiv(channels, channels % 8 == 0 ? 64 : 32);
  const int64_t most = std::max<int64_t>(1, 1024 / tiles);
  const int64_t blocks = std::clamp<int64_t>(CeilDiv(rows, 256), 1, most);
  const int64_t each = std::max<int64_t>(CeilDiv(CeilDiv(rows, blocks), 32) * 32, 32);
  return CeilDiv(rows, each) * 2 * channels * 8;
}

// What cuDNN 9.19's engines without differences from run to run, and in fp32 without TF32, were
// found to want on an H200 for all of ResNet-50's convolutions, 32 and 256 images: weights in
// another layout or parts of their gradient, in fp32 at most, and little more; images with a number
// of channels that is no multiple of 8 filled up to one; in fp32 images in another layout.
int64_t LibraryBytes(const graph::Value& x, const graph::Value& y, int64_t weights) {
  constexpr int64_t kLittle = int64_t{8} << 20;
  int64_t bytes = weights * 4 + kLittle;
  for (const graph::Value* images : {&x, &y}) {
    const int64_t channels = images->shape[3];
    if (channels % 8 == 0 && images->dtype != DType::kF32) continue;
    bytes += graph::Elements(images->shape) / channels * CeilDiv(channels, 8) * 8 *
             ByteSize(images->dtype);
  }
  return bytes;
}

// The weights' gradient in the inputs' type, then the library's scratch. A backend that is told
// more plans again with min_convolution_workspace_bytes.
int64_t CudaConvolutionBytes(const graph::Graph& graph, const graph::Op& op,
                             const PlanOptions& options) {
  const auto value = [&](graph::ValueId id) -> const graph::Value& { return graph.values[id]; };
  const bool forward = op.kind == OpKind::kConvolution;
  const bool data = op.kind == OpKind::kConvolutionBackwardData;
  const graph::Value& x = value(data ? op.outputs[0].value : op.inputs[0]);
  const graph::Value& y = value(forward ? op.outputs[0].value : op.inputs[data ? 0 : 1]);
  const int64_t kernel = op.attributes.image.kernel;
  const int64_t weights = x.shape[3] * y.shape[3] * kernel * kernel;
  const int64_t gradient = forward || data ? 0 : DeviceAligned(weights * ByteSize(x.dtype));
  return std::max(gradient + LibraryBytes(x, y, weights), options.min_convolution_workspace_bytes);
}

}  // namespace

int64_t CudaImageWorkspaceBytes(const graph::Graph& graph, const graph::Op& op,
                                const PlanOptions& options) {
  switch (op.kind) {
    case OpKind::kConvolution:
    case OpKind::kConvolutionBackwardData:
    case OpKind::kConvolutionBackwardWeights:
      return CudaConvolutionBytes(graph, op, options);
    case OpKind::kBatchNormSums:
    case OpKind::kBatchNormBackwardSums:
      return BatchNormSumsBytes(graph.values[op.inputs[0]].shape);
    case OpKind::kClassifierLoss:
    case OpKind::kClassifierLossBackward:  // classifier_kernels.h: RowLoss
      return graph.values[op.inputs[0]].shape[0] * 16;
    default:
      return 0;
  }
}

}  // namespace milepost::plan
