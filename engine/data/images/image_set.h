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
  // Above 0: the bytes are plain u8 RGB pixels [height, width, 3]. Otherwise a JPEG or PNG.
  int64_t width = 0;
  int64_t height = 0;
};

// Immutable and thread-safe. The order of the images is part of the data order of checkpoints: it
// depends on the names and the contents of the files alone.
class ImageSet {
 public:
  static constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();

  virtual ~ImageSet() = default;
  virtual int64_t size() const = 0;  // at least 1
  // From 0 on, below the number of classes. `image` in [0, size), here and below.
  virtual int32_t LabelOf(int64_t image) const = 0;
  // Of the options' heads, by their place there: a label for each image, -1: none.
  virtual absl::Span<const int32_t> HeadLabels(size_t head) const;
  // For messages: the path, or the shard and the place in it.
  virtual std::string NameOf(int64_t image) const = 0;
  // The first `limit` bytes (at least: where nothing is saved by it, all). `out->bytes` lies in
  // `storage`, which is overwritten, or in the set. Blocks on the disk. Errors, naming the file: of
  // the file system, as they are; INVALID_ARGUMENT for an empty file or one above 256 MiB.
  virtual absl::Status Read(int64_t image, int64_t limit, std::string* storage,
                            StoredImage* out) const = 0;
  // Of a folder: the class folders' names, sorted; the label is the place among them. Otherwise
  // empty.
  virtual const std::vector<std::string>& class_names() const;
};

struct ImageSetOptions {
  int64_t classes = 0;  // labels must be below it; 0: any
  // A folder's classes, where another set's labels must be meant (validation): class folders that
  // are not among them are refused. Empty: the folder's own.
  std::vector<std::string> class_names;
  // Further tasks whose labels the set itself holds: tar shards only.
  std::vector<std::string> heads;
};

// What `path` is:
// - ends in .npy: u8 [N, H, W, 3], with int32 or int64 labels [N] in <path without
// .npy>.labels.npy;
// - ends in .tar: a WebDataset shard, or with shard-{0000..0099}.tar many (shard_index.h);
// - a folder that holds *.tar: its shards, sorted by name;
// - another folder: path/<class>/*.jpg, *.jpeg, *.png (in any case), classes and files sorted by
// name,
//   byte by byte. Names that begin with a dot, other files and deeper folders are ignored.
// Memory: the name and 12 bytes per image of a folder; 16 bytes per image of a shard; none of .npy.
// NOT_FOUND, PERMISSION_DENIED; INVALID_ARGUMENT with path and reason for whatever is malformed,
// holds no image, has a label that is not below `classes`, or no labels of `heads`.
absl::StatusOr<std::shared_ptr<const ImageSet>> OpenImageSet(const std::string& path,
                                                             const ImageSetOptions& options);

// Of further tasks: a label for each image of the set at `path`, -1: none. Those without a file of
// their own are in this order the options' `heads` that the set was opened with. LabelFile's
// errors; INVALID_ARGUMENT where labels are not as many as images, not below the head's classes, or
// all -1.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadHeadLabels(
    const std::string& path, const ImageSet& set, absl::Span<const LabelOptions> wanted);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_IMAGE_SET_H_
