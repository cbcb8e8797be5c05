// Decodes JPEG by libjpeg-turbo, in the stored image's coordinates. Callers use decode.h.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_JPEG_H_
#define MILEPOST_ENGINE_DATA_IMAGES_JPEG_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/images/decode.h"

namespace milepost::data {

bool IsJpeg(absl::string_view bytes);

// INVALID_ARGUMENT has libjpeg's reason. Allocates nothing that grows with the image's size.
absl::StatusOr<ImageInfo> ReadJpegInfo(absl::string_view bytes);

// `region` lies inside the stored image. The caller has checked the size against its limit. A file
// whose size is no longer `info`'s is refused. Those warnings of libjpeg that mean damaged data are
// errors here. Bytes between segments and after the image are accepted.
absl::Status DecodeJpeg(absl::string_view bytes, const ImageInfo& info, const Region& region,
                        int shrink, DecodedRegion* out);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_JPEG_H_
