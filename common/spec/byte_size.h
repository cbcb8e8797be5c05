// Byte counts as people write them.
//
//   ParseByteSize("80GiB")  // 85899345920
//   ByteSizeText(85899345920)  // "80GiB"
#ifndef MILEPOST_COMMON_SPEC_BYTE_SIZE_H_
#define MILEPOST_COMMON_SPEC_BYTE_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace milepost {

// Accepts digits alone, or a number and a unit, with or without a space between them. Units are B,
// KiB, MiB, GiB, TiB (powers of 1024) and KB, MB, GB, TB (powers of 1000). Nullopt: the text is
// anything else, negative, not a whole number of bytes, or above 2^62. Pure.
std::optional<int64_t> ParseByteSize(absl::string_view text);

// Uses the largest binary unit in which the size is whole: "1536MiB", "1000B". ParseByteSize reads
// it back unchanged.
std::string ByteSizeText(int64_t bytes);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_BYTE_SIZE_H_
