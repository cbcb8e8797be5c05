// The part of an image that a sample shows: random resized crops for training, the centre for
// validation, tiles of large images. Pure: everything follows from sizes, seed and sample number.
//
//   const View view = RandomView(options, info.width, info.height, seed, global_sample);
//   renderer.Render(bytes, info, view, options.image_size, out);   // u8 RGB [size, size, 3]
//
// All functions are thread-safe.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_VIEW_H_
#define MILEPOST_ENGINE_DATA_IMAGES_VIEW_H_

#include <cstdint>

#include "engine/data/images/image.h"
#include "engine/data/images/resample.h"

namespace milepost::data {

struct ViewOptions {
  int64_t image_size = 224;  // the sides of a sample
  // Random resized crop: the crop's share of the image's area, and its width divided by its height.
  double min_scale = 0.08;
  double max_scale = 1;
  double min_ratio = 0.75;
  double max_ratio = 4.0 / 3;
  bool random_crop = true;   // training; otherwise the centre
  double flip = 0.5;         // share of the samples that are mirrored left to right
  int64_t resize = 256;      // validation: the shorter side before the centre is cropped
  int64_t patch_size = 0;    // above 0: tiles of this size instead of crops
  int64_t patch_stride = 0;  // from one tile to the next, at most patch_size
};

// Output pixel (i, j) is sampled around (x.start + (i + 0.5) * x.scale, y...) of the whole image.
struct View {
  ResampleAxis x;
  ResampleAxis y;
  bool flip = false;

  bool operator==(const View& other) const;
};

// Like torchvision.transforms.RandomResizedCrop, then RandomHorizontalFlip. The area is uniform,
// and so is the logarithm of the ratio. After ten tries it is the largest centred crop of a
// permitted ratio. Drawn from Philox by (seed, global_sample): independent of world size, threads
// and other samples.
View RandomView(const ViewOptions& options, int64_t width, int64_t height, uint64_t seed,
                int64_t global_sample);

// True when a training sample is mirrored. Every view except RandomView leaves that to its caller.
bool IsMirrored(const ViewOptions& options, uint64_t seed, int64_t global_sample);

// Like Resize(options.resize), then CenterCrop(options.image_size). image_size is at most resize.
View CentreView(const ViewOptions& options, int64_t width, int64_t height);

// The number of tiles of an image of this size, row by row. Tiles lie at multiples of the stride.
// The last one of a row and of a column is moved back so that it ends with the image. Every pixel
// is in some tile, and no pixel is made up, except that an image smaller than a tile has its edge
// repeated.
int64_t TilesOf(const ViewOptions& options, int64_t width, int64_t height);
// `tile` in [0, TilesOf).
View TileView(const ViewOptions& options, int64_t width, int64_t height, int64_t tile);

// How far a JPEG may be shrunk while it is decoded: by 1, 2, 4 or 8. The shrunk part still has at
// least as many pixels as the view.
int ShrinkFor(const View& view);

// The pixels of the whole image that the view needs, when decoded at 1/shrink.
Region RegionOf(const View& view, int64_t output_size, int shrink);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_VIEW_H_
