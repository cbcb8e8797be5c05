// Lengths of time as people write them: "90m", "12h", "1d12h", "90" (seconds).
//
//   ParseSeconds("1d12h");   // 129600
//   ParseSeconds("soon");    // nullopt
#ifndef MILEPOST_COMMON_SPEC_DURATION_H_
#define MILEPOST_COMMON_SPEC_DURATION_H_

#include <optional>

#include "absl/strings/string_view.h"

namespace milepost {

// Seconds; digits alone, or numbers each with one of the units d, h, m, s, ms. nullopt when it is
// neither, negative, or longer than 2^31 seconds.
std::optional<double> ParseSeconds(absl::string_view text);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_DURATION_H_
