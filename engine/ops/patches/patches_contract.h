// What patches of images are to both devices' kernels.
#ifndef MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

// Images [batch, height, width, channels], cut into squares of `side` x `side` pixels, which
// divides both.
struct PatchGrid {
  int64_t batch = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int64_t side = 1;

  int64_t Across() const { return width / side; }
  int64_t PerImage() const { return height / side * Across(); }
  int64_t Numbers() const { return channels * side * side; }  // of a patch
};

// Rows of `width` numbers: of each image one for its class, then one for each patch.
struct TokenRows {
  int64_t batch = 0;
  int64_t patches = 0;  // of an image
  int64_t width = 0;
};

// A sum over the images, in their order, which is added or assigned. Null: it is not wanted.
struct TokenSum {
  float* to = nullptr;
  bool accumulate = false;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CONTRACT_H_
