#include "engine/data/images/pixel_source.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::data {

absl::StatusOr<std::shared_ptr<const PixelSource>> PixelSource::Create(
    std::shared_ptr<const ImageSet> set, int64_t size, bool shuffled, uint64_t seed) {
  std::shared_ptr<const PixelSource> source(new PixelSource(std::move(set), size, shuffled, seed));
  std::string storage;
  std::vector<char> pixels(size * size * 3);
  int32_t target;
  MP_RETURN_IF_ERROR(source->Read(0, &storage, pixels.data(), reinterpret_cast<char*>(&target)));
  return source;
}

PixelSource::PixelSource(std::shared_ptr<const ImageSet> set, int64_t size, bool shuffled,
                         uint64_t seed)
    : set_(std::move(set)),
      size_(size),
      shuffled_(shuffled),
      order_(set_->size(), seed),
      fields_({{.name = "images", .sample_bytes = size * size * 3},
               {.name = "targets", .sample_bytes = sizeof(int32_t), .targets = 1}}) {}

absl::Status PixelSource::Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const {
  std::string storage;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t image = shuffled_ ? order_.SampleAt(first + i) : first + i;
    MP_RETURN_IF_ERROR(Read(image, &storage, into[0] + i * fields_[0].sample_bytes,
                            into[1] + i * fields_[1].sample_bytes));
  }
  return absl::OkStatus();
}

absl::Status PixelSource::Read(int64_t image, std::string* storage, char* pixels,
                               char* target) const {
  StoredImage stored;
  MP_RETURN_IF_ERROR(set_->Read(image, ImageSet::kWhole, storage, &stored));
  if (stored.width != size_ || stored.height != size_) {
    return absl::InvalidArgumentError(
        absl::StrCat(set_->NameOf(image), ": expected plain pixels of ", size_, " x ", size_,
                     stored.width > 0 ? absl::StrCat(", got ", stored.width, " x ", stored.height)
                                      : ", got a compressed image"));
  }
  std::memcpy(pixels, stored.bytes.data(), stored.bytes.size());
  const int32_t label = set_->LabelOf(image);
  std::memcpy(target, &label, sizeof(label));
  return absl::OkStatus();
}

}  // namespace milepost::data
