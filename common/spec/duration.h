// Lengths of time as people write them: "90m", "12h", "1d12h", "90" (seconds). Pure and
// thread-safe.
//
//   ParseSeconds("1d12h");   // 129600
//   ParseSeconds("soon");    // nullopt
#ifndef MILEPOST_COMMON_SPEC_DURATION_H_
#define MILEPOST_COMMON_SPEC_DURATION_H_

#include <optional>

#include "absl/strings/string_view.h"

namespace milepost {

// Returns seconds. The text is digits alone, or numbers that each have one of the units d, h, m, s,
// ms. Nullopt: it is neither, is negative, or is longer than 2^31 seconds.
std::optional<double> ParseSeconds(absl::string_view text);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_DURATION_H_
