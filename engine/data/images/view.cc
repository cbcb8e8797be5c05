#include "engine/data/images/view.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/check.h"
#include "common/philox.h"

namespace milepost::data {
namespace {

// Streams of their own: engine/runtime/executor/randomness.h has the others. Part of the data order
// that checkpoints rely on, as is the use of the draws: they never change.
constexpr uint64_t kCropStream = uint64_t{16} << 32;
constexpr uint64_t kFlipStream = uint64_t{17} << 32;
constexpr int kTries = 10;

std::array<uint32_t, 4> Draw(uint64_t seed, uint64_t stream, int64_t sample, uint32_t number) {
  const auto at = static_cast<uint64_t>(sample);
  return Philox4x32({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), number, 0},
                    PhiloxKey(seed, stream));
}

double Uniform(uint32_t word, double low, double high) {
  return low + (high - low) * (static_cast<double>(word) * 0x1p-32);
}

// Uniform in [0, n].
int64_t UpTo(uint32_t word, int64_t n) {
  return static_cast<int64_t>((uint64_t{word} * static_cast<uint64_t>(n + 1)) >> 32);
}

ResampleAxis AxisOf(int64_t first, int64_t length, int64_t outputs) {
  return {static_cast<double>(first), static_cast<double>(length) / static_cast<double>(outputs),
          first, first + length};
}

Region Centred(int64_t width, int64_t height, int64_t crop_width, int64_t crop_height) {
  return {(width - crop_width) / 2, (height - crop_height) / 2, crop_width, crop_height};
}

Region RandomCrop(const ViewOptions& options, int64_t width, int64_t height, uint64_t seed,
                  int64_t sample) {
  const double area = static_cast<double>(width) * static_cast<double>(height);
  for (uint32_t attempt = 0; attempt < kTries; ++attempt) {
    const auto words = Draw(seed, kCropStream, sample, attempt);
    const double target = area * Uniform(words[0], options.min_scale, options.max_scale);
    const double ratio =
        std::exp(Uniform(words[1], std::log(options.min_ratio), std::log(options.max_ratio)));
    const auto w = static_cast<int64_t>(std::nearbyint(std::sqrt(target * ratio)));
    const auto h = static_cast<int64_t>(std::nearbyint(std::sqrt(target / ratio)));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return {UpTo(words[2], width - w), UpTo(words[3], height - h), w, h};
  }
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  const auto side = [](double exact, int64_t limit) {
    return std::clamp<int64_t>(static_cast<int64_t>(std::nearbyint(exact)), 1, limit);
  };
  if (ratio < options.min_ratio) {
    return Centred(width, height, width,
                   side(static_cast<double>(width) / options.min_ratio, height));
  }
  if (ratio > options.max_ratio) {
    return Centred(width, height, side(static_cast<double>(height) * options.max_ratio, width),
                   height);
  }
  return {0, 0, width, height};
}

// Of one side: resized to `resized` pixels, of which `outputs` in the middle are wanted.
ResampleAxis CentreAxis(int64_t length, int64_t resized, int64_t outputs) {
  const double scale = static_cast<double>(length) / static_cast<double>(resized);
  const double skipped = std::nearbyint(static_cast<double>(resized - outputs) / 2.0);
  return {skipped * scale, scale, 0, length};
}

// Tiles along one side.
int64_t TilesAlong(const ViewOptions& options, int64_t length) {
  if (length <= options.patch_size) return 1;
  return (length - options.patch_size + options.patch_stride - 1) / options.patch_stride + 1;
}

ResampleAxis TileAxis(const ViewOptions& options, int64_t length, int64_t tile) {
  const int64_t last = std::max<int64_t>(0, length - options.patch_size);
  const int64_t first = std::min(tile * options.patch_stride, last);
  ResampleAxis axis = AxisOf(first, options.patch_size, options.image_size);
  axis.end = std::min(axis.end, length);
  return axis;
}

// The input pixels of one axis that any output looks at.
void Needed(const ResampleAxis& axis, int64_t outputs, int shrink, int64_t* first,
            int64_t* length) {
  const double reach = std::max(axis.scale, static_cast<double>(shrink)) + shrink;
  const double begin = axis.start + 0.5 * axis.scale - reach;
  const double end = axis.start + (static_cast<double>(outputs) - 0.5) * axis.scale + reach;
  *first = std::clamp(static_cast<int64_t>(std::floor(begin)), axis.first, axis.end - 1);
  *length = std::clamp(static_cast<int64_t>(std::ceil(end)), *first + 1, axis.end) - *first;
}

bool Same(const ResampleAxis& a, const ResampleAxis& b) {
  return a.start == b.start && a.scale == b.scale && a.first == b.first && a.end == b.end;
}

}  // namespace

bool View::operator==(const View& other) const {
  return Same(x, other.x) && Same(y, other.y) && flip == other.flip;
}

bool IsMirrored(const ViewOptions& options, uint64_t seed, int64_t global_sample) {
  return Uniform(Draw(seed, kFlipStream, global_sample, 0)[0], 0, 1) < options.flip;
}

View RandomView(const ViewOptions& options, int64_t width, int64_t height, uint64_t seed,
                int64_t global_sample) {
  const Region crop = RandomCrop(options, width, height, seed, global_sample);
  return {AxisOf(crop.x, crop.width, options.image_size),
          AxisOf(crop.y, crop.height, options.image_size),
          IsMirrored(options, seed, global_sample)};
}

View CentreView(const ViewOptions& options, int64_t width, int64_t height) {
  MP_CHECK(options.image_size <= options.resize);
  const int64_t shorter = std::min(width, height);
  // The longer side is cut off, not rounded, as torchvision does.
  return {CentreAxis(width, options.resize * width / shorter, options.image_size),
          CentreAxis(height, options.resize * height / shorter, options.image_size), false};
}

int64_t TilesOf(const ViewOptions& options, int64_t width, int64_t height) {
  return TilesAlong(options, width) * TilesAlong(options, height);
}

View TileView(const ViewOptions& options, int64_t width, int64_t height, int64_t tile) {
  const int64_t columns = TilesAlong(options, width);
  MP_CHECK(tile >= 0 && tile < TilesOf(options, width, height)) << tile;
  return {TileAxis(options, width, tile % columns), TileAxis(options, height, tile / columns),
          false};
}

int ShrinkFor(const View& view) {
  const double scale = std::min(view.x.scale, view.y.scale);
  return scale >= 8 ? 8 : scale >= 4 ? 4 : scale >= 2 ? 2 : 1;
}

Region RegionOf(const View& view, int64_t output_size, int shrink) {
  Region region;
  Needed(view.x, output_size, shrink, &region.x, &region.width);
  Needed(view.y, output_size, shrink, &region.y, &region.height);
  return region;
}

}  // namespace milepost::data
