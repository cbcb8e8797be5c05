// Resizing with a triangle filter (bilinear; when it shrinks, the triangle is as wide as the scale:
// no aliasing), in 22-bit fixed point: the same bits as Pillow's Image.resize(BILINEAR), which
// torchvision's transforms use.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_RESAMPLE_H_
#define MILEPOST_ENGINE_DATA_IMAGES_RESAMPLE_H_

#include <cstdint>
#include <vector>

#include "engine/data/images/image.h"

namespace milepost::data {

// Where the output's columns (or rows) come from: the centre of output pixel i is at
// start + (i + 0.5) * scale, in units of the input's pixels, whose pixel j covers [j, j + 1).
struct ResampleAxis {
  double start = 0;
  double scale = 1;   // above 0
  int64_t first = 0;  // only input pixels [first, end) are looked at; what lies outside has the
  int64_t end = 0;    // colour of the nearest of them
};

// What a resize needs besides input and output; kept from one to the next. Not thread-safe.
class Resampler {
 public:
  // Writes u8 RGB [height, width, 3]; `flip` mirrors the output left to right. The axes' pixels are
  // inside `in`, at least one each (CHECK).
  void Resize(const Image& in, const ResampleAxis& x, const ResampleAxis& y, int64_t width,
              int64_t height, bool flip, uint8_t* out);

  // Per output pixel: which inputs, and with what weights; all have `taps` weights, zeros beyond
  // `count`.
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
