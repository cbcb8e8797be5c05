// What a convolution asks of its workspace on a GPU.
#ifndef MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CUDA_H_
#define MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CUDA_H_

#include <cstdint>

#include "engine/graph/graph.h"

namespace milepost::ops::gpu {

// What of a convolution's workspace lies in front of the library's.
int64_t ConvolutionBytesBeforeScratch(const graph::Graph& graph, const graph::Op& op);

}  // namespace milepost::ops::gpu

#endif  // MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CUDA_H_
