// Convolutions, batch norms, pools, images and the classifier's loss on the GPU.
#include "absl/strings/str_cat.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"

namespace milepost::runtime {

using graph::OpKind;
using kernels::ConvolutionPass;

kernels::ConvolutionPass ConvolutionPassOf(OpKind kind) {
  return kind == OpKind::kConvolution               ? ConvolutionPass::kForward
         : kind == OpKind::kConvolutionBackwardData ? ConvolutionPass::kBackwardData
                                                    : ConvolutionPass::kBackwardWeights;
}

kernels::ConvolutionSpec ConvolutionSpecOf(const graph::Graph& graph, const graph::Op& op) {
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

// The library writes the weights' gradient in their type; it is added to the fp32 one from here.
int64_t ConvolutionBytesBeforeScratch(const graph::Graph& graph, const graph::Op& op) {
  if (op.kind != OpKind::kConvolutionBackwardWeights) return 0;
  const kernels::ConvolutionSpec spec = ConvolutionSpecOf(graph, op);
  return AlignScratch(spec.WeightElements() * static_cast<int64_t>(kernels::ByteSize(spec.type)));
}

absl::StatusOr<BoundOp> BindImageOp(const CudaBinding& b) {
  return absl::UnimplementedError(
      absl::StrCat("the GPU has no kernel for ", graph::Name(b.planned.op.kind)));
}

}  // namespace milepost::runtime
