// The samples of a WebDataset shard. A sample has an image (KEY.jpg, KEY.jpeg or KEY.png) and its
// class (KEY.cls, a number in ASCII). For further tasks it has KEY.<head>.cls: a class, or -1 for
// no label. Members of a sample follow each other; other members are ignored.
// https://github.com/webdataset/webdataset: KEY is the name up to the first dot after the last '/'.
// Pure and thread-safe.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_SHARD_INDEX_H_
#define MILEPOST_ENGINE_DATA_IMAGES_SHARD_INDEX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace milepost::data {

struct ShardEntry {
  int64_t offset = 0;  // of the image's bytes, in the shard
  uint32_t size = 0;   // of the image, in bytes
  int32_t label = 0;
};

// Scans the headers and classes of a shard in memory once. Samples keep their order in the shard.
// Errors are TarScanner's. INVALID_ARGUMENT, with the byte offset and the key: a sample lacks an
// image or class, has two, or its class is not a number from 0 on. `heads` names further tasks, in
// upper or lower case. The samples' labels for head i are appended to (*labels)[i].
absl::StatusOr<std::vector<ShardEntry>> IndexShard(
    absl::string_view bytes, absl::Span<const std::string> heads = {},
    std::vector<std::vector<int32_t>>* labels = nullptr);

// "shard-{0000..0099}.tar" -> 100 names, with the pattern's number of digits. Text without braces
// stands for itself. There may be one pair of braces. INVALID_ARGUMENT: the pattern is malformed,
// or names no file or more than 100,000.
absl::StatusOr<std::vector<std::string>> ExpandBraces(const std::string& pattern);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_SHARD_INDEX_H_
