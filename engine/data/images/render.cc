#include "engine/data/images/render.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"

namespace milepost::data {
namespace {

// `axis` of the whole image in the pixels of one that begins at `origin` and is shrunk.
ResampleAxis Within(const ResampleAxis& axis, int64_t origin, int shrink, int64_t length) {
  const auto factor = static_cast<double>(shrink);
  const int64_t first = std::max<int64_t>(0, axis.first - origin) / shrink;
  const int64_t end = std::min(length, (axis.end - origin + shrink - 1) / shrink);
  return {(axis.start - static_cast<double>(origin)) / factor, axis.scale / factor, first, end};
}

}  // namespace

absl::Status ViewRenderer::Render(absl::string_view bytes, const ImageInfo& info, const View& view,
                                  int64_t size, uint8_t* out) {
  const int shrink = info.format == ImageFormat::kJpeg ? ShrinkFor(view) : 1;
  MP_RETURN_IF_ERROR(decoder_.Decode(bytes, info, RegionOf(view, size, shrink), shrink, &decoded_));
  const Image& image = decoded_.image;
  resampler_.Resize(image, Within(view.x, decoded_.x, decoded_.shrink, image.width),
                    Within(view.y, decoded_.y, decoded_.shrink, image.height), size, size,
                    view.flip, out);
  return absl::OkStatus();
}

void ViewRenderer::RenderPixels(const uint8_t* rgb, int64_t width, int64_t height, const View& view,
                                int64_t size, uint8_t* out) {
  const Region region = RegionOf(view, size, 1);
  Image& image = decoded_.image;
  image.Resize(region.width, region.height);
  for (int64_t y = 0; y < region.height; ++y) {
    std::memcpy(image.Row(y), rgb + ((region.y + y) * width + region.x) * 3,
                static_cast<size_t>(region.width) * 3);
  }
  resampler_.Resize(image, Within(view.x, region.x, 1, image.width),
                    Within(view.y, region.y, 1, image.height), size, size, view.flip, out);
}

}  // namespace milepost::data
