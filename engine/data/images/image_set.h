// A set of labelled images: a folder of class folders, WebDataset shards, or a pair of .npy arrays.
//
//   MP_ASSIGN_OR_RETURN(auto set, OpenImageSet("imagenet/train", {.classes = 1000}));
//   StoredImage image;
//   std::string storage;                                   // one per thread
//   MP_RETURN_IF_ERROR(set->Read(i, ImageSet::kWhole, &storage, &image));
#ifndef MILEPOST_ENGINE_DATA_IMAGES_IMAGE_SET_H_
#define MILEPOST_ENGINE_DATA_IMAGES_IMAGE_SET_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/data/label_file.h"

namespace milepost::data {

struct StoredImage {
  absl::string_view bytes;
  // Above 0: the bytes are plain u8 RGB pixels [height, width, 3]. Otherwise they are a JPEG or
  // PNG.
  int64_t width = 0;
  int64_t height = 0;
};

// Immutable and thread-safe. The order of the images is part of the data order of checkpoints. It
// depends only on the files' names and contents.
class ImageSet {
 public:
  static constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();

  virtual ~ImageSet() = default;
  virtual int64_t size() const = 0;  // at least 1
  // From 0 on, below the number of classes. `image` is in [0, size), here and below.
  virtual int32_t LabelOf(int64_t image) const = 0;
  // The labels for the options' head number `head`: one for each image, -1: none.
  virtual absl::Span<const int32_t> HeadLabels(size_t head) const;
  // A name for messages: the path, or the shard and the place in it.
  virtual std::string NameOf(int64_t image) const = 0;
  // Reads at least the first `limit` bytes; where that saves nothing, all. `out->bytes` lies in the
  // set, or in `storage`, which is overwritten. Blocks on the disk. Errors name the file. Those of
  // the file system are returned unchanged. INVALID_ARGUMENT: the file is empty or larger than 256
  // MiB.
  virtual absl::Status Read(int64_t image, int64_t limit, std::string* storage,
                            StoredImage* out) const = 0;
  // For a folder: the names of the class folders, sorted. A label is the index of its class in
  // them. Otherwise empty.
  virtual const std::vector<std::string>& class_names() const;
};

struct ImageSetOptions {
  int64_t classes = 0;  // labels must be below it; 0: any
  // The classes of a folder when the labels must agree with another set's (validation). Other class
  // folders are refused. Empty: the folder's own.
  std::vector<std::string> class_names;
  // Further tasks whose labels the set itself holds. Only tar shards can.
  std::vector<std::string> heads;
};

// The forms of `path`:
// - It ends in .npy: u8 [N, H, W, 3], with int32 or int64 labels [N] in <path without
//   .npy>.labels.npy.
// - It ends in .tar: a WebDataset shard, or with shard-{0000..0099}.tar many shards
//   (shard_index.h).
// - It is a folder that holds *.tar: the folder's shards, sorted by name.
// - It is another folder: path/<class>/*.jpg, *.jpeg, *.png (in upper or lower case). Classes and
//   files are sorted by name, byte by byte. Names that begin with a dot, other files and deeper
//   folders are ignored.
//
// Memory: the name and 12 bytes per image of a folder; 16 bytes per image of a shard; none for
// .npy.
//
// NOT_FOUND, PERMISSION_DENIED: the path cannot be read. INVALID_ARGUMENT has path and reason: the
// data is malformed, holds no image, has a label that is not below `classes`, or lacks labels of
// `heads`.
absl::StatusOr<std::shared_ptr<const ImageSet>> OpenImageSet(const std::string& path,
                                                             const ImageSetOptions& options);

// The labels of further tasks: one for each image of the set at `path`, -1: none. Tasks without a
// file of their own must be, in this order, the options' `heads` with which the set was opened.
// Errors are LabelFile's. INVALID_ARGUMENT: there are not as many labels as images, a label is not
// below the head's classes, or all are -1.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadHeadLabels(
    const std::string& path, const ImageSet& set, absl::Span<const LabelOptions> wanted);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_IMAGE_SET_H_
