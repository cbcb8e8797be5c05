// Any bytes as an image file: refused with a message, or pixels, whichever part is asked for.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "engine/data/images/decode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  // The last bytes choose the part; the file is all of it.
  const uint8_t* choice = data + size - 4;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  milepost::data::ImageDecoder decoder({.max_pixels = 1 << 18});
  const auto info = decoder.ReadInfo(bytes);
  if (!info.ok()) {
    MP_CHECK(!info.status().message().empty());
    return 0;
  }
  milepost::data::Region region{.x = info->width * choice[0] / 256,
                                .y = info->height * choice[1] / 256};
  region.width = std::max<int64_t>(1, (info->width - region.x) * choice[2] / 255);
  region.height = std::max<int64_t>(1, (info->height - region.y) * choice[3] / 255);
  const int shrink = 1 << (choice[0] + choice[1]) % 4;
  milepost::data::DecodedRegion out;
  const absl::Status status = decoder.Decode(bytes, *info, region, shrink, &out);
  if (!status.ok()) {
    MP_CHECK(!status.message().empty());
    return 0;
  }
  MP_CHECK(out.x <= region.x && out.y <= region.y);
  MP_CHECK(out.x + out.image.width * out.shrink >= region.x + region.width);
  MP_CHECK(out.y + out.image.height * out.shrink >= region.y + region.height);
  // Every pixel is there to be read.
  uint32_t sum = 0;
  for (const uint8_t pixel : out.image.pixels) sum += pixel;
  MP_CHECK(sum <= 255u * out.image.pixels.size());
  return 0;
}
