// JPEG through libjpeg-turbo, in the stored image's coordinates (decode.h is for callers).
#ifndef MILEPOST_ENGINE_DATA_IMAGES_JPEG_H_
#define MILEPOST_ENGINE_DATA_IMAGES_JPEG_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/images/decode.h"

namespace milepost::data {

bool IsJpeg(absl::string_view bytes);

// INVALID_ARGUMENT with libjpeg's reason. Allocates nothing that grows with the image's size.
absl::StatusOr<ImageInfo> ReadJpegInfo(absl::string_view bytes);

// `region` is of the stored image, inside it (the caller has checked the size against its limit).
// A file whose size is no longer `info`'s is refused. Warnings of libjpeg that mean damaged data
// are errors here; bytes between segments and after the image are not.
absl::Status DecodeJpeg(absl::string_view bytes, const ImageInfo& info, const Region& region,
                        int shrink, DecodedRegion* out);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_JPEG_H_
