// Samples of an image set whose images are plain pixels of the samples' size already, as they are.
//
//   MP_ASSIGN_OR_RETURN(auto train, PixelSource::Create(set, 32, /*shuffled=*/true, seed));
#ifndef MILEPOST_ENGINE_DATA_IMAGES_PIXEL_SOURCE_H_
#define MILEPOST_ENGINE_DATA_IMAGES_PIXEL_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/images/image_set.h"
#include "engine/data/sample_source.h"
#include "engine/data/sampler.h"

namespace milepost::data {

// Fields: "images" u8 [size, size, 3] and "targets" i32.
class PixelSource : public SampleSource {
 public:
  // `shuffled`: endless, in the order of SampleOrder(set->size(), seed); otherwise one pass in the
  // set's order. INVALID_ARGUMENT when the first image is not plain pixels of size x size.
  static absl::StatusOr<std::shared_ptr<const PixelSource>> Create(
      std::shared_ptr<const ImageSet> set, int64_t size, bool shuffled, uint64_t seed);

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return set_->size(); }
  absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const override;

 private:
  PixelSource(std::shared_ptr<const ImageSet> set, int64_t size, bool shuffled, uint64_t seed);
  absl::Status Read(int64_t image, std::string* storage, char* pixels, char* target) const;

  const std::shared_ptr<const ImageSet> set_;
  const int64_t size_;
  const bool shuffled_;
  const SampleOrder order_;
  std::vector<Field> fields_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_PIXEL_SOURCE_H_
