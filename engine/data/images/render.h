// Makes a sample's pixels from a view and a file's bytes, or from plain pixels.
//
//   ViewRenderer renderer(limits);                          // one per thread
//   MP_ASSIGN_OR_RETURN(ImageInfo info, renderer.ReadInfo(bytes));
//   MP_RETURN_IF_ERROR(renderer.Render(bytes, info, view, 224, out));
#ifndef MILEPOST_ENGINE_DATA_IMAGES_RENDER_H_
#define MILEPOST_ENGINE_DATA_IMAGES_RENDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/images/decode.h"
#include "engine/data/images/resample.h"
#include "engine/data/images/view.h"

namespace milepost::data {

// Decodes only the part that the view shows. A JPEG is decoded at a half, a quarter or an eighth of
// its size when the view has no more pixels than that. Not thread-safe. Keeps its buffers.
class ViewRenderer {
 public:
  explicit ViewRenderer(const DecodeLimits& limits) : decoder_(limits) {}

  absl::StatusOr<ImageInfo> ReadInfo(absl::string_view bytes) const {
    return decoder_.ReadInfo(bytes);
  }
  // `view` is for an image of info's size. Writes u8 RGB [size, size, 3] to `out`. Errors are
  // ImageDecoder's.
  absl::Status Render(absl::string_view bytes, const ImageInfo& info, const View& view,
                      int64_t size, uint8_t* out);
  // `rgb` is u8 RGB [height, width, 3].
  void RenderPixels(const uint8_t* rgb, int64_t width, int64_t height, const View& view,
                    int64_t size, uint8_t* out);

 private:
  ImageDecoder decoder_;
  DecodedRegion decoded_;
  Resampler resampler_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_RENDER_H_
