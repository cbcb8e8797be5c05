// Samples of images. The fields are "images", u8 RGB [size, size, 3], and "targets", i32; then the
// labels of further tasks, i32, -1: none.
//
//   ImageSourceOptions options = {.view = {.image_size = 224}, .classes = 1000, .seed = 1};
//   MP_ASSIGN_OR_RETURN(auto train, ImageSource::Open("imagenet/train", options));
//
// Training: sample k of the run is the image SampleOrder(samples, seed).SampleAt(k). It is shown as
// RandomView(..., seed, k), or at its centre. With patches it is one tile. Validation: images (or
// all tiles of each) in the set's order, centred.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_IMAGE_SOURCE_H_
#define MILEPOST_ENGINE_DATA_IMAGES_IMAGE_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/images/decode.h"
#include "engine/data/images/image_set.h"
#include "engine/data/images/render.h"
#include "engine/data/images/view.h"
#include "engine/data/label_file.h"
#include "engine/data/sample_source.h"
#include "engine/data/sampler.h"

namespace milepost::data {

struct ImageSourceOptions {
  ViewOptions view;
  DecodeLimits limits;
  int64_t classes = 0;  // labels must be below it
  // The classes of a validation set's folders: those of the training set. Empty: its own.
  std::vector<std::string> class_names;
  bool train = true;
  uint64_t seed = 0;
  // True: another image replaces a damaged one, namely the set's next one that is not damaged and
  // has a label wherever the first has one. Tile t becomes tile t modulo the other image's tiles.
  // The choice depends only on the files, so the data order stays the same at any world size. But
  // an image may count as damaged in one crop and not in another, because decoding stops below the
  // crop. False: a damaged image is an error. Images that cannot be read at all (missing, no
  // permission, a failing disk) are always errors.
  bool skip_damaged = false;
  std::vector<LabelOptions> labels;
};

// Memory for each thread in Fetch: an encoded file (at most 256 MiB), and 3 bytes per decoded
// pixel, of which there are at most limits.max_pixels. A progressive JPEG takes another 6 bytes per
// pixel of the whole image. The memory is kept for the next image.
class ImageSource : public SampleSource {
 public:
  // Errors are OpenImageSet's. With patches the header of every image is read. INVALID_ARGUMENT
  // names a damaged image; with skip_damaged it is left out instead, and has no tiles. Labels are
  // read whole: LabelFile's errors, and INVALID_ARGUMENT when there are not as many as images, or
  // one is not below the head's classes.
  static absl::StatusOr<std::shared_ptr<const ImageSource>> Open(const std::string& path,
                                                                 const ImageSourceOptions& options);

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return order_.samples(); }
  absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const override;
  absl::StatusOr<int64_t> CountTargets(size_t field, int64_t first, int64_t count) const override;
  absl::Status AddTo(Fingerprint* print) const override;
  SourceStats stats() const override;

  const ImageSet& set() const { return *set_; }

 private:
  // What a thread needs to fetch samples.
  struct Scratch {
    explicit Scratch(const DecodeLimits& limits) : renderer(limits) {}
    ViewRenderer renderer;
    std::string storage;
  };
  // An image, or a tile of it.
  struct Place {
    int64_t image = 0;
    int64_t tile = 0;
  };

  ImageSource(std::shared_ptr<const ImageSet> set, const ImageSourceOptions& options);
  absl::Status IndexTiles();
  absl::StatusOr<int64_t> CountTiles(int64_t image, Scratch* scratch) const;
  bool patches() const { return options_.view.patch_size > 0; }
  Place PlaceOf(int64_t sample) const;
  Place PlaceOfSample(int64_t global) const;
  Place NextImage(const Place& place) const;
  // True when `other` has a label wherever `image` has one. So the number of targets stays the
  // same.
  bool IsLabelledLike(int64_t image, int64_t other) const;
  int64_t TilesOfImage(int64_t image) const;
  // Makes the sample's pixels. `image` gets the image shown: the sample's own, or its replacement.
  absl::Status FetchOne(int64_t global, Scratch* scratch, uint8_t* pixels, int64_t* image) const;
  absl::Status Show(const Place& place, int64_t global, Scratch* scratch, uint8_t* pixels) const;
  View ViewOf(const Place& place, int64_t global, int64_t width, int64_t height) const;
  std::unique_ptr<Scratch> Borrow() const;
  void Return(std::unique_ptr<Scratch> scratch) const;
  void NoteDamage(const absl::Status& status) const;

  const std::shared_ptr<const ImageSet> set_;
  const ImageSourceOptions options_;
  std::vector<Field> fields_;
  std::vector<std::vector<int32_t>> labels_;  // by the options' labels, then by image
  SampleOrder order_;
  std::vector<int64_t> tile_ends_;  // number of tiles up to and including each image's

  mutable std::atomic<int64_t> fetched_ = 0;
  mutable std::atomic<int64_t> bytes_read_ = 0;
  mutable std::atomic<int64_t> damaged_ = 0;
  mutable std::atomic<int64_t> busy_nanoseconds_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
  mutable std::shared_ptr<const std::string> first_damage_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_IMAGE_SOURCE_H_
