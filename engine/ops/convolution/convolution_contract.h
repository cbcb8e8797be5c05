// What convolutions are to both devices' libraries. Activations are [batch, height, width,
// channels], weights [out, in, kernel, kernel].
#ifndef MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CONTRACT_H_

#include <cstdint>

#include "engine/dtype/dtype.h"

namespace milepost::kernels {

struct ConvolutionSpec {
  int64_t batch = 0;
  int64_t height = 0;  // of the input
  int64_t width = 0;
  int64_t in = 0;  // channels
  int64_t out = 0;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  DType type = DType::kF32;  // of activations and weights; weight gradients are f32

  int64_t OutHeight() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t OutWidth() const { return (width + 2 * padding - kernel) / stride + 1; }
  int64_t WeightElements() const { return out * in * kernel * kernel; }
  bool operator==(const ConvolutionSpec&) const = default;
};

enum class ConvolutionPass : uint8_t { kForward, kBackwardData, kBackwardWeights };

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CONTRACT_H_
