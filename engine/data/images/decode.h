// Decodes JPEG and PNG files, or a part of one, from memory to u8 RGB.
//
//   ImageDecoder decoder({.max_pixels = kDefaultMaxPixels});
//   MP_ASSIGN_OR_RETURN(ImageInfo info, decoder.ReadInfo(bytes));          // only the header
//   DecodedRegion out;
//   MP_RETURN_IF_ERROR(decoder.Decode(bytes, info, {.x = 0, .y = 0, .width = 224, .height = 224},
//                                     /*shrink=*/1, &out));
//
// Every file is converted as follows:
// - Grey becomes RGB with three equal channels. Palettes are looked up. 16 bits become the nearest
//   8.
// - Alpha is dropped, not blended, as in Pillow's convert("RGB"). Gamma and colour profiles are
//   ignored.
// - CMYK and YCCK JPEGs count as stored inverted, as Adobe writes them, and are converted without a
//   profile.
// - EXIF's orientation is applied: sizes and regions are those of the image as viewed.
//
// Nothing is allocated for an image with more pixels than the limit. Malformed, truncated and
// hostile files give INVALID_ARGUMENT with the reason. A JPEG is read only as far as the region
// needs, so damage below the region is not noticed.
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

// Pixel (i, j) of `image` covers columns [x + i*shrink, x + (i+1)*shrink) and rows [y + j*shrink,
// ...) of the whole image. A shrunk image may reach a little beyond the edges of the whole image,
// if its size is not a multiple of `shrink`.
struct DecodedRegion {
  Image image;
  int64_t x = 0;
  int64_t y = 0;
  int shrink = 1;
};

// Keeps its buffers between images. Not thread-safe: use one per thread.
class ImageDecoder {
 public:
  explicit ImageDecoder(const DecodeLimits& limits) : limits_(limits) {}

  // INVALID_ARGUMENT: it is neither JPEG nor PNG, its header cannot be read, or it has more pixels
  // than the limit.
  absl::StatusOr<ImageInfo> ReadInfo(absl::string_view bytes) const;

  // `info` is ReadInfo's result for the same bytes. `region` must be inside the image and not empty
  // (CHECK). The decoded part covers at least the region. `shrink` is 1, 2, 4 or 8. A JPEG is
  // decoded at 1/shrink of its size, so each pixel stands for shrink x shrink pixels of the file. A
  // PNG is always decoded at its own size; out->shrink says so.
  absl::Status Decode(absl::string_view bytes, const ImageInfo& info, const Region& region,
                      int shrink, DecodedRegion* out);

 private:
  const DecodeLimits limits_;
  Image scratch_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_DECODE_H_
