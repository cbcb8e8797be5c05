// Resizes with a triangle filter (bilinear), in 22-bit fixed point. When it shrinks, the triangle
// is as wide as the scale, so there is no aliasing. It gives the same bits as Pillow's
// Image.resize(BILINEAR), which torchvision's transforms use.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_RESAMPLE_H_
#define MILEPOST_ENGINE_DATA_IMAGES_RESAMPLE_H_

#include <cstdint>
#include <vector>

#include "engine/data/images/image.h"

namespace milepost::data {

// The source of the output's columns (or rows). The centre of output pixel i is at
// start + (i + 0.5) * scale, in units of input pixels. Input pixel j covers [j, j + 1).
struct ResampleAxis {
  double start = 0;
  double scale = 1;  // above 0
  // Only input pixels [first, end) are read. Positions outside have the colour of the nearest of
  // them.
  int64_t first = 0;
  int64_t end = 0;
};

// Resizes, and keeps its buffers between calls. Not thread-safe.
class Resampler {
 public:
  // Writes u8 RGB [height, width, 3]. `flip` mirrors the output left to right. The axes' pixels
  // must be inside `in`, at least one each (CHECK).
  void Resize(const Image& in, const ResampleAxis& x, const ResampleAxis& y, int64_t width,
              int64_t height, bool flip, uint8_t* out);

  // For each output pixel: which inputs it uses, and their weights. Each has `taps` weights, which
  // are zero beyond `count`.
  struct Weights {
    std::vector<int64_t> first;
    std::vector<int64_t> count;
    std::vector<int32_t> values;  // 2^22 is 1
    int64_t taps = 0;
  };

 private:
  void FillWeights(const ResampleAxis& axis, int64_t outputs, Weights* weights);

  Weights columns_;
  Weights rows_;
  std::vector<double> exact_;
  std::vector<uint8_t> between_;  // after the horizontal pass
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_RESAMPLE_H_
