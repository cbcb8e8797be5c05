// Decodes PNG by libpng, in the stored image's coordinates. Callers use decode.h.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_PNG_H_
#define MILEPOST_ENGINE_DATA_IMAGES_PNG_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/images/decode.h"

namespace milepost::data {

bool IsPng(absl::string_view bytes);

// INVALID_ARGUMENT has the reason. Reads only the chunks before the pixels.
absl::StatusOr<ImageInfo> ReadPngInfo(absl::string_view bytes);

// Like DecodeJpeg, but always at the image's own size. An interlaced file is decoded whole. Others
// are decoded row by row, with memory only for the region's rows.
absl::Status DecodePng(absl::string_view bytes, const ImageInfo& info, const Region& region,
                       DecodedRegion* out);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_PNG_H_
