// The orientation in a JPEG's or PNG's EXIF data. Pure and thread-safe.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_EXIF_H_
#define MILEPOST_ENGINE_DATA_IMAGES_EXIF_H_

#include "absl/strings/string_view.h"
#include "engine/data/images/image.h"

namespace milepost::data {

// `tiff` is the TIFF structure, beginning with "II" or "MM". In JPEG's APP1 it follows "Exif\0\0";
// in PNG it is the eXIf chunk. Data that is malformed, absent or out of range gives 1. Cameras and
// editors write so much broken EXIF that it is no reason to refuse an image. Reads only IFD0.
Orientation OrientationOf(absl::string_view tiff);

// Turns the stored image into the image as viewed. `scratch` keeps its capacity.
void ApplyOrientation(Orientation orientation, Image* image, Image* scratch);

// The region of the stored image from which `region` of the viewed image comes. `width` and
// `height` are the viewed image's.
Region StoredRegion(Orientation orientation, int64_t width, int64_t height, const Region& region);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_EXIF_H_
