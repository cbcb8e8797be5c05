// Pixels, and what an image file says about itself before its pixels are decoded.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_IMAGE_H_
#define MILEPOST_ENGINE_DATA_IMAGES_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace milepost::data {

// A rectangle of pixels: columns [x, x + width), rows [y, y + height).
struct Region {
  int64_t x = 0;
  int64_t y = 0;
  int64_t width = 0;
  int64_t height = 0;

  bool operator==(const Region&) const = default;
};

// u8 RGB, row-major [height, width, 3]. The vector keeps its capacity between images.
struct Image {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> pixels;

  void Resize(int64_t new_width, int64_t new_height) {
    width = new_width;
    height = new_height;
    pixels.resize(static_cast<size_t>(width * height * 3));
  }
  uint8_t* Row(int64_t y) { return pixels.data() + y * width * 3; }
  const uint8_t* Row(int64_t y) const { return pixels.data() + y * width * 3; }
};

enum class ImageFormat : uint8_t { kJpeg, kPng };

// EXIF's orientation, 1 to 8: how stored pixels are turned for viewing (CIPA DC-008, tag 0x0112).
// 1: as stored. From 5 on, width and height are exchanged.
using Orientation = uint8_t;

struct ImageInfo {
  ImageFormat format = ImageFormat::kJpeg;
  int64_t width = 0;  // as viewed: after the orientation
  int64_t height = 0;
  Orientation orientation = 1;
};

inline constexpr int64_t kDefaultMaxPixels = int64_t{1} << 27;
inline constexpr int64_t kMaxImageSide = 65535;  // JPEG's own limit; also applied to PNG

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_IMAGE_H_
