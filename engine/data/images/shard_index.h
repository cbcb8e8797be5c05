// What a WebDataset shard holds: samples of an image, KEY.jpg, KEY.jpeg or KEY.png, and its class,
// KEY.cls (a number in ASCII), and of further tasks KEY.<head>.cls (the same, or -1: no label).
// Members of a sample follow each other; other members are ignored.
// https://github.com/webdataset/webdataset: KEY is the name up to the first dot after the last '/'.
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
  int64_t offset = 0;  // of the image's bytes in the shard
  uint32_t size = 0;   // of them
  int32_t label = 0;
};

// One scan over the headers (and classes) of a shard in memory; the samples in the order in which
// they lie there. TarScanner's errors; INVALID_ARGUMENT, with the byte offset and the key, for a
// sample without an image or class, with two, or whose class is not a number from 0 on. `heads`:
// further tasks, in any case; of each, (*labels)[i] gets the samples' labels behind what it holds.
absl::StatusOr<std::vector<ShardEntry>> IndexShard(
    absl::string_view bytes, absl::Span<const std::string> heads = {},
    std::vector<std::vector<int32_t>>* labels = nullptr);

// "shard-{0000..0099}.tar" -> 100 names, with the pattern's number of digits; text without braces
// is itself. One pair of braces at most. INVALID_ARGUMENT for a pattern that cannot be read or that
// names none or more than 100,000 files.
absl::StatusOr<std::vector<std::string>> ExpandBraces(const std::string& pattern);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_SHARD_INDEX_H_
