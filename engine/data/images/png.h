// PNG through libpng, in the stored image's coordinates (decode.h is for callers).
#ifndef MILEPOST_ENGINE_DATA_IMAGES_PNG_H_
#define MILEPOST_ENGINE_DATA_IMAGES_PNG_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/images/decode.h"

namespace milepost::data {

bool IsPng(absl::string_view bytes);

// INVALID_ARGUMENT with the reason. Looks at the chunks before the pixels alone.
absl::StatusOr<ImageInfo> ReadPngInfo(absl::string_view bytes);

// As DecodeJpeg, always at the image's own size. An interlaced file is decoded whole, others row by
// row: memory is that of the region's rows.
absl::Status DecodePng(absl::string_view bytes, const ImageInfo& info, const Region& region,
                       DecodedRegion* out);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_PNG_H_
