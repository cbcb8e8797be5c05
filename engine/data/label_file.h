// The labels of one task, memory-mapped: a .npy array of integers, one for each token or image, in
// their order. -1 means no label.
//
//   MP_ASSIGN_OR_RETURN(auto labels, LabelFile::Open("tags.npy", 17));
//   MP_RETURN_IF_ERROR(labels->Read(begin, absl::MakeSpan(out)));
#ifndef MILEPOST_ENGINE_DATA_LABEL_FILE_H_
#define MILEPOST_ENGINE_DATA_LABEL_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/data/npy_header.h"

namespace milepost::data {

// Describes a field of labels that a source of samples has besides its own fields.
struct LabelOptions {
  std::string field;    // its name in the source
  std::string path;     // a LabelFile; empty: tar shards hold them, as KEY.<head>.cls
  int64_t classes = 0;  // labels are below it
  std::string head;
};

// The head of a LabelFile that is a loss mask: 1 where a token is a target, 0 or -1 where not.
inline constexpr int64_t kMaskClasses = 2;

// INVALID_ARGUMENT: the labels of the head, from `path`, are all -1.
absl::Status NoLabels(absl::string_view path, absl::string_view head, int64_t classes);

// Immutable and thread-safe.
class LabelFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED: the file cannot be opened. INVALID_ARGUMENT, naming the path:
  // it is cut off, or is not a one-dimensional little-endian .npy array of 8- to 64-bit integers
  // (64 bits: signed) or bools. Labels are not checked here.
  static absl::StatusOr<std::shared_ptr<const LabelFile>> Open(const std::string& path,
                                                               int64_t classes);

  const std::string& path() const { return path_; }
  int64_t size() const { return array_.header.shape[0]; }

  // INVALID_ARGUMENT, naming path and `head`: the first `count` labels are all -1, so there is
  // nothing to learn. Reads up to the first label.
  absl::Status CheckAnyLabel(int64_t count, absl::string_view head) const;

  // Whether any of labels [begin, begin + count) is `label`. Reads up to the first one. Errors are
  // Read's.
  absl::StatusOr<bool> Holds(int32_t label, int64_t begin, int64_t count) const;

  // Reads labels [begin, begin + out.size()), which must be inside the file (CHECK).
  // INVALID_ARGUMENT, naming path, place, label and `classes`: a label is neither -1 nor below
  // `classes`.
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const;

 private:
  LabelFile(std::string path, int64_t classes, NpyArray array);

  std::string path_;
  int64_t classes_;
  NpyArray array_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_LABEL_FILE_H_
