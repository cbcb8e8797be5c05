// The labels of one task, memory-mapped: a .npy array of integers, one for each token or image, in
// their order; -1: none.
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

// What a source of samples is to have besides its own fields.
struct LabelOptions {
  std::string field;    // its name there
  std::string path;     // of a LabelFile; empty: the tar shards hold them, as KEY.<head>.cls
  int64_t classes = 0;  // labels are below it
  std::string head;
};

// INVALID_ARGUMENT: labels of the head are in `path`, and all are -1.
absl::Status NoLabels(absl::string_view path, absl::string_view head, int64_t classes);

// Immutable and thread-safe.
class LabelFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED; INVALID_ARGUMENT, naming the path, for what is not a .npy array
  // of one dimension of 8- to 64-bit integers (64: signed), little-endian, or is cut off. No label
  // is checked here.
  static absl::StatusOr<std::shared_ptr<const LabelFile>> Open(const std::string& path,
                                                               int64_t classes);

  const std::string& path() const { return path_; }
  int64_t size() const { return array_.header.shape[0]; }

  // INVALID_ARGUMENT naming path and `head` when the first `count` are -1, all of them: there is
  // nothing to learn. Reads up to the first label.
  absl::Status CheckAnyLabel(int64_t count, absl::string_view head) const;

  // Labels [begin, begin + out.size()), inside the file (CHECK). INVALID_ARGUMENT naming path,
  // place, label and `classes` for one that is neither -1 nor below them.
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const;

 private:
  LabelFile(std::string path, int64_t classes, NpyArray array);

  std::string path_;
  int64_t classes_;
  NpyArray array_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_LABEL_FILE_H_
