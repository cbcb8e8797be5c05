#include "engine/data/images/resample.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "engine/data/images/resample_passes.h"

namespace milepost::data {

void Resampler::FillWeights(const ResampleAxis& axis, int64_t outputs, Weights* weights) {
  const double widening = std::max(axis.scale, 1.0);  // half the triangle's base
  weights->taps = static_cast<int64_t>(std::ceil(widening)) * 2 + 1;
  weights->first.resize(static_cast<size_t>(outputs));
  weights->count.resize(static_cast<size_t>(outputs));
  weights->values.assign(static_cast<size_t>(outputs * weights->taps), 0);
  exact_.resize(static_cast<size_t>(weights->taps));
  for (int64_t i = 0; i < outputs; ++i) {
    double centre = axis.start + (static_cast<double>(i) + 0.5) * axis.scale;
    if (centre < static_cast<double>(axis.first)) centre = static_cast<double>(axis.first) + 0.5;
    if (centre > static_cast<double>(axis.end)) centre = static_cast<double>(axis.end) - 0.5;
    const auto first =
        std::max(axis.first, static_cast<int64_t>(std::floor(centre - widening + 0.5)));
    const auto end = std::min(axis.end, static_cast<int64_t>(std::floor(centre + widening + 0.5)));
    const int64_t count = std::clamp<int64_t>(end - first, 1, weights->taps);
    double sum = 0;
    for (int64_t k = 0; k < count; ++k) {
      const double distance = (static_cast<double>(first + k) - centre + 0.5) * (1.0 / widening);
      exact_[static_cast<size_t>(k)] = std::max(0.0, 1.0 - std::abs(distance));
      sum += exact_[static_cast<size_t>(k)];
    }
    weights->first[static_cast<size_t>(i)] = first;
    weights->count[static_cast<size_t>(i)] = count;
    for (int64_t k = 0; k < count && sum > 0; ++k) {
      weights->values[static_cast<size_t>(i * weights->taps + k)] = static_cast<int32_t>(
          0.5 + exact_[static_cast<size_t>(k)] * (1.0 / sum) * double{1 << kWeightBits});
    }
  }
}

void Resampler::Resize(const Image& in, const ResampleAxis& x, const ResampleAxis& y, int64_t width,
                       int64_t height, bool flip, uint8_t* out) {
  MP_CHECK(x.first >= 0 && x.first < x.end && x.end <= in.width) << x.first << " " << x.end;
  MP_CHECK(y.first >= 0 && y.first < y.end && y.end <= in.height) << y.first << " " << y.end;
  FillWeights(x, width, &columns_);
  FillWeights(y, height, &rows_);
  int64_t first_row = in.height, end_row = 0;
  for (int64_t i = 0; i < height; ++i) {
    const auto at = static_cast<size_t>(i);
    first_row = std::min(first_row, rows_.first[at]);
    end_row = std::max(end_row, rows_.first[at] + rows_.count[at]);
  }
  // One byte more: pixels are written four bytes at a time.
  between_.resize(static_cast<size_t>((end_row - first_row) * width * 3 + 1));
  for (int64_t row = first_row; row < end_row; ++row) {
    // Pixels are also read four bytes at a time, which the image's last one does not have.
    ResampleRow(in.Row(row), columns_, width, flip, /*exact_end=*/row + 1 == in.height,
                between_.data() + (row - first_row) * width * 3);
  }
  for (int64_t i = 0; i < height; ++i) {
    const auto at = static_cast<size_t>(i);
    ResampleColumn(between_.data() + (rows_.first[at] - first_row) * width * 3,
                   rows_.values.data() + i * rows_.taps, rows_.count[at], width * 3,
                   out + i * width * 3);
  }
}

}  // namespace milepost::data
