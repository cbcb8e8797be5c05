#include "engine/data/images/decode.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/data/images/exif.h"
#include "engine/data/images/jpeg.h"
#include "engine/data/images/png.h"

namespace milepost::data {
namespace {

absl::Status CheckSize(const ImageInfo& info, const DecodeLimits& limits) {
  if (info.width < 1 || info.height < 1 || info.width > kMaxImageSide ||
      info.height > kMaxImageSide || info.width * info.height > limits.max_pixels) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an image of ", info.width, " x ", info.height, " pixels; at most ", limits.max_pixels,
        " (data.images.max_pixels) and ", kMaxImageSide, " on a side are decoded"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageInfo> ImageDecoder::ReadInfo(absl::string_view bytes) const {
  ImageInfo info;
  if (IsJpeg(bytes)) {
    MP_ASSIGN_OR_RETURN(info, ReadJpegInfo(bytes));
  } else if (IsPng(bytes)) {
    MP_ASSIGN_OR_RETURN(info, ReadPngInfo(bytes));
  } else {
    return absl::InvalidArgumentError("neither JPEG nor PNG, by its first bytes");
  }
  MP_RETURN_IF_ERROR(CheckSize(info, limits_));
  return info;
}

absl::Status ImageDecoder::Decode(absl::string_view bytes, const ImageInfo& info,
                                  const Region& region, int shrink, DecodedRegion* out) {
  MP_CHECK(shrink == 1 || shrink == 2 || shrink == 4 || shrink == 8) << shrink;
  MP_CHECK(region.x >= 0 && region.y >= 0 && region.width >= 1 && region.height >= 1 &&
           region.x + region.width <= info.width && region.y + region.height <= info.height);
  MP_RETURN_IF_ERROR(CheckSize(info, limits_));
  const Region stored = StoredRegion(info.orientation, info.width, info.height, region);
  if (info.format == ImageFormat::kJpeg) {
    MP_RETURN_IF_ERROR(DecodeJpeg(bytes, info, stored, shrink, out));
  } else {
    MP_RETURN_IF_ERROR(DecodePng(bytes, info, stored, out));
  }
  // Back from the stored image's coordinates: the region of which the looked-at one is the stored.
  const bool swapped = info.orientation >= 5;
  // Turning back is the same turn, but for the two quarter turns.
  const Orientation inverse = info.orientation == 6   ? Orientation{8}
                              : info.orientation == 8 ? Orientation{6}
                                                      : info.orientation;
  const Region covered = StoredRegion(
      inverse, swapped ? info.height : info.width, swapped ? info.width : info.height,
      {out->x, out->y, out->image.width * out->shrink, out->image.height * out->shrink});
  ApplyOrientation(info.orientation, &out->image, &scratch_);
  out->x = covered.x;
  out->y = covered.y;
  return absl::OkStatus();
}

}  // namespace milepost::data
