// What the library is asked to compute for a convolution.
#ifndef MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CUDA_H_
#define MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CUDA_H_

#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/kernels/cpu/convolution.h"

namespace milepost::ops::gpu {

kernels::ConvolutionSpec ConvolutionSpecOf(const graph::Graph& graph, const graph::Op& op);
kernels::ConvolutionPass ConvolutionPassOf(graph::OpKind kind);
// What of its workspace lies in front of the library's.
int64_t ConvolutionBytesBeforeScratch(const graph::Graph& graph, const graph::Op& op);

}  // namespace milepost::ops::gpu

#endif  // MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CUDA_H_
