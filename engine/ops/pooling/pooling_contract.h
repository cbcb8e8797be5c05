// What pooling of images is to both devices' kernels.
#ifndef MILEPOST_ENGINE_OPS_POOLING_POOLING_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_POOLING_POOLING_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

// Square windows of at most 15 x 15, of which every one holds a pixel: padding < kernel.
struct PoolSpec {
  int64_t batch = 0;
  int64_t height = 0;  // of the input
  int64_t width = 0;
  int64_t channels = 0;
  int64_t kernel = 3;
  int64_t stride = 2;
  int64_t padding = 1;

  int64_t OutHeight() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t OutWidth() const { return (width + 2 * padding - kernel) / stride + 1; }
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_POOLING_POOLING_CONTRACT_H_
