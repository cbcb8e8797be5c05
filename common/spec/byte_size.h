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

// Digits alone, or a number and a unit: B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB
// (powers of 1000), a space between them or not. nullopt when it is anything else, negative, not a
// whole number of bytes or above 2^62. Pure.
std::optional<int64_t> ParseByteSize(absl::string_view text);

// The largest binary unit in which the size is whole: "1536MiB", "1000B". Reads back the same.
std::string ByteSizeText(int64_t bytes);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_BYTE_SIZE_H_
