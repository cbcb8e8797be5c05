// Convolutions of images with square windows.
//
//   const ValueId y = ops::Convolution(b, "conv1", x, weight, {.stride = 2, .padding = 3});
//
// kConvolution:                x[B,Y,X,I], w[O,I,k,k] -> y[B,Y',X',O]
// kConvolutionBackwardData:    dy, w -> dx
// kConvolutionBackwardWeights: x, dy -> dw
#ifndef MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_H_
#define MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// `weight`: [out, in, k, k], as torch has it.
graph::ValueId Convolution(graph::Builder& b, absl::string_view name, graph::ValueId x,
                           graph::ValueId weight, const graph::WindowOptions& options);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_H_
