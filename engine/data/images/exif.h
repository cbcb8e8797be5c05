// The orientation in a JPEG's or PNG's EXIF data.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_EXIF_H_
#define MILEPOST_ENGINE_DATA_IMAGES_EXIF_H_

#include "absl/strings/string_view.h"
#include "engine/data/images/image.h"

namespace milepost::data {

// `tiff`: the TIFF structure, from its "II" or "MM" on (in JPEG's APP1 it follows "Exif\0\0"; in
// PNG it is the eXIf chunk). What is malformed, absent or out of range gives 1: cameras and editors
// write so much broken EXIF that it is no reason to refuse an image. Reads IFD0 alone.
Orientation OrientationOf(absl::string_view tiff);

// Turns `image`, as stored, into the image to be looked at; `scratch` keeps its capacity.
void ApplyOrientation(Orientation orientation, Image* image, Image* scratch);

// The region of the stored image that `region` of the image to be looked at comes from; `width` and
// `height` are of the image to be looked at.
Region StoredRegion(Orientation orientation, int64_t width, int64_t height, const Region& region);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_EXIF_H_
