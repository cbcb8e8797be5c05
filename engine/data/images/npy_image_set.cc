#include "engine/data/images/npy_image_set.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "engine/data/images/image.h"
#include "engine/data/npy_header.h"

namespace milepost::data {
namespace {

class NpyImageSet : public ImageSet {
 public:
  NpyImageSet(std::string path, NpyArray images, NpyArray labels)
      : path_(std::move(path)), images_(std::move(images)), labels_(std::move(labels)) {}

  absl::Status Check() const {
    const NpyArrayHeader& images = images_.header;
    const std::string& type = images.descr;
    if ((type != "|u1" && type != "<u1" && type != ">u1" && type != "u1") ||
        images.shape.size() != 4 || images.shape[3] != 3 || height() < 1 || width() < 1 ||
        height() > kMaxImageSide || width() > kMaxImageSide) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ": dtype '", absl::CHexEscape(type), "' and shape (",
          absl::StrJoin(images.shape, ", "), "); images are uint8 [N, height, width, 3]"));
    }
    MP_RETURN_IF_ERROR(Annotate(CheckNpyBytes(images_, 1), path_));
    const std::string labels_path = LabelsPathOf(path_);
    const NpyArrayHeader& labels = labels_.header;
    if ((labels.descr != "<i4" && labels.descr != "<i8") || labels.shape.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          labels_path, ": dtype '", absl::CHexEscape(labels.descr), "' and ", labels.shape.size(),
          " dimensions; labels are int32 or int64 [N], little-endian"));
    }
    MP_RETURN_IF_ERROR(Annotate(CheckNpyBytes(labels_, LabelBytes()), labels_path));
    if (labels.shape[0] == images.shape[0]) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(labels_path, ": ", labels.shape[0],
                                                   " labels, but ", path_, " has ", images.shape[0],
                                                   " images"));
  }

  int64_t size() const override { return images_.header.shape[0]; }
  int32_t LabelOf(int64_t image) const override {
    int64_t label = 0;
    if (LabelBytes() == 8) {
      std::memcpy(&label, labels_.data + image * 8, 8);
      // Out of int32's range is out of any number of classes.
      return static_cast<int32_t>(
          std::clamp<int64_t>(label, -1, std::numeric_limits<int32_t>::max()));
    }
    int32_t narrow = 0;
    std::memcpy(&narrow, labels_.data + image * 4, 4);
    return narrow;
  }
  std::string NameOf(int64_t image) const override {
    return absl::StrCat(path_, ", image ", image);
  }
  absl::Status Read(int64_t image, int64_t limit, std::string* storage,
                    StoredImage* out) const override {
    const int64_t bytes = height() * width() * 3;
    *out = {.bytes = {images_.data + image * bytes, static_cast<size_t>(bytes)},
            .width = width(),
            .height = height()};
    return absl::OkStatus();
  }

 private:
  int64_t height() const { return images_.header.shape[1]; }
  int64_t width() const { return images_.header.shape[2]; }
  int64_t LabelBytes() const { return labels_.header.descr == "<i8" ? 8 : 4; }

  std::string path_;
  NpyArray images_;
  NpyArray labels_;
};

}  // namespace

std::string LabelsPathOf(const std::string& images_path) {
  return images_path.substr(0, images_path.size() - 4) + ".labels.npy";
}

absl::StatusOr<std::shared_ptr<const ImageSet>> OpenNpyImageSet(const std::string& path) {
  MP_ASSIGN_OR_RETURN(NpyArray images, OpenNpyArray(path));
  MP_ASSIGN_OR_RETURN(NpyArray labels, OpenNpyArray(LabelsPathOf(path)));
  auto set = std::make_shared<NpyImageSet>(path, std::move(images), std::move(labels));
  MP_RETURN_IF_ERROR(set->Check());
  return set;
}

}  // namespace milepost::data
