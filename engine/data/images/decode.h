// Decodes JPEG and PNG files, or a part of one, from memory into u8 RGB.
//
//   ImageDecoder decoder({.max_pixels = kDefaultMaxPixels});
//   MP_ASSIGN_OR_RETURN(ImageInfo info, decoder.ReadInfo(bytes));          // the header alone
//   DecodedRegion out;
//   MP_RETURN_IF_ERROR(decoder.Decode(bytes, info, {.x = 0, .y = 0, .width = 224, .height = 224},
//                                     /*shrink=*/1, &out));
//
// What every file becomes:
// - Grey becomes RGB of three equal channels. Palettes are looked up. 16 bits become the nearest 8.
// - Alpha is dropped, not blended, as Pillow's convert("RGB") does. Gamma and colour profiles are
//   ignored.
// - CMYK and YCCK JPEGs are taken to be stored inverted, as Adobe writes them, and converted
// without
//   a profile.
// - EXIF's orientation is applied: sizes and regions are those of the image as it is looked at.
//
// Nothing is allocated for an image of more pixels than the limit. Malformed, truncated and hostile
// files give INVALID_ARGUMENT with the reason. Of a JPEG only as much is read as the region needs:
// damage below it is not noticed.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_DECODE_H_
#define MILEPOST_ENGINE_DATA_IMAGES_DECODE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/images/image.h"

namespace milepost::data {

struct DecodeLimits {
  int64_t max_pixels = kDefaultMaxPixels;
};

// Pixel (i, j) of `image` covers columns [x + i*shrink, x + (i+1)*shrink) and rows
// [y + j*shrink, ...) of the whole image. A shrunk one may reach a little beyond the whole image's
// edges, where its size is no multiple of `shrink`.
struct DecodedRegion {
  Image image;
  int64_t x = 0;
  int64_t y = 0;
  int shrink = 1;
};

// Keeps its buffers from image to image. Not thread-safe: one per thread.
class ImageDecoder {
 public:
  explicit ImageDecoder(const DecodeLimits& limits) : limits_(limits) {}

  // INVALID_ARGUMENT: neither JPEG nor PNG, a header that cannot be read, more pixels than the
  // limit.
  absl::StatusOr<ImageInfo> ReadInfo(absl::string_view bytes) const;

  // `info` is ReadInfo's of the same bytes; `region` is inside the image, not empty (CHECK). What
  // is decoded covers at least the region. `shrink` is 1, 2, 4 or 8: a JPEG is decoded at 1/shrink
  // of its size, each pixel standing for shrink x shrink of the file's; a PNG is decoded at its own
  // size whatever is asked (out->shrink says).
  absl::Status Decode(absl::string_view bytes, const ImageInfo& info, const Region& region,
                      int shrink, DecodedRegion* out);

 private:
  const DecodeLimits limits_;
  Image scratch_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_DECODE_H_
