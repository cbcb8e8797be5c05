// What the binders of convolutions share.
#ifndef MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_BINDING_H_
#define MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_BINDING_H_

#include <cstdint>

#include "engine/ops/convolution/convolution_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::ConvolutionPass ConvolutionPassOf(graph::OpKind kind) {
  return kind == graph::OpKind::kConvolution ? kernels::ConvolutionPass::kForward
         : kind == graph::OpKind::kConvolutionBackwardData
             ? kernels::ConvolutionPass::kBackwardData
             : kernels::ConvolutionPass::kBackwardWeights;
}

inline kernels::ConvolutionSpec ConvolutionSpecOf(const graph::Graph& graph, const graph::Op& op) {
  const auto value = [&](graph::ValueId id) -> const graph::Value& { return graph.values[id]; };
  const bool forward = op.kind == graph::OpKind::kConvolution;
  const bool data = op.kind == graph::OpKind::kConvolutionBackwardData;
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
          .type = x.dtype};
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_BINDING_H_
