#include "engine/data/images/exif.h"

#include <cstring>
#include <utility>

namespace milepost::data {
namespace {

constexpr uint16_t kOrientationTag = 0x0112;
constexpr uint16_t kShortType = 3;

// Integers of either byte order, with bounds.
class TiffReader {
 public:
  TiffReader(absl::string_view bytes, bool big_endian) : bytes_(bytes), big_endian_(big_endian) {}

  // 0 outside the bytes: no value that is looked for is 0.
  uint32_t Read(uint64_t at, int size) const {
    if (at + static_cast<uint64_t>(size) > bytes_.size()) return 0;
    uint32_t value = 0;
    for (int i = 0; i < size; ++i) {
      const auto byte = static_cast<uint8_t>(bytes_[at + static_cast<uint64_t>(i)]);
      value |= uint32_t{byte} << (8 * (big_endian_ ? size - 1 - i : i));
    }
    return value;
  }

 private:
  absl::string_view bytes_;
  bool big_endian_;
};

// Where pixel (x, y) of the image to be looked at, width x height, lies in the stored one.
std::pair<int64_t, int64_t> Stored(Orientation orientation, int64_t width, int64_t height,
                                   int64_t x, int64_t y) {
  const int64_t right = width - 1 - x;
  const int64_t bottom = height - 1 - y;
  switch (orientation) {
    case 2:
      return {right, y};
    case 3:
      return {right, bottom};
    case 4:
      return {x, bottom};
    case 5:
      return {y, x};
    case 6:
      return {y, right};
    case 7:
      return {bottom, right};
    case 8:
      return {bottom, x};
    default:
      return {x, y};
  }
}

}  // namespace

Orientation OrientationOf(absl::string_view tiff) {
  if (tiff.size() < 8) return 1;
  const absl::string_view order = tiff.substr(0, 2);
  if (order != "II" && order != "MM") return 1;
  const TiffReader reader(tiff, order == "MM");
  if (reader.Read(2, 2) != 42) return 1;
  const uint64_t directory = reader.Read(4, 4);
  if (directory < 8) return 1;
  const uint32_t entries = reader.Read(directory, 2);
  for (uint32_t i = 0; i < entries; ++i) {
    const uint64_t entry = directory + 2 + uint64_t{i} * 12;
    if (entry + 12 > tiff.size()) return 1;
    if (reader.Read(entry, 2) != kOrientationTag) continue;
    if (reader.Read(entry + 2, 2) != kShortType || reader.Read(entry + 4, 4) != 1) return 1;
    const uint32_t value = reader.Read(entry + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<Orientation>(value) : Orientation{1};
  }
  return 1;
}

void ApplyOrientation(Orientation orientation, Image* image, Image* scratch) {
  if (orientation == 1) return;
  const bool swapped = orientation >= 5;
  scratch->Resize(swapped ? image->height : image->width, swapped ? image->width : image->height);
  for (int64_t y = 0; y < scratch->height; ++y) {
    uint8_t* out = scratch->Row(y);
    for (int64_t x = 0; x < scratch->width; ++x) {
      const auto [from_x, from_y] = Stored(orientation, scratch->width, scratch->height, x, y);
      std::memcpy(out + x * 3, image->Row(from_y) + from_x * 3, 3);
    }
  }
  std::swap(*image, *scratch);
}

Region StoredRegion(Orientation orientation, int64_t width, int64_t height, const Region& region) {
  const auto [ax, ay] = Stored(orientation, width, height, region.x, region.y);
  const auto [bx, by] =
      Stored(orientation, width, height, region.x + region.width - 1, region.y + region.height - 1);
  const int64_t x = ax < bx ? ax : bx;
  const int64_t y = ay < by ? ay : by;
  return {x, y, (ax < bx ? bx : ax) - x + 1, (ay < by ? by : ay) - y + 1};
}

}  // namespace milepost::data
