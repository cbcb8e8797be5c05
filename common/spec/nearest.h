// "Did you mean": the valid name nearest to what was typed.
#ifndef MILEPOST_COMMON_SPEC_NEAREST_H_
#define MILEPOST_COMMON_SPEC_NEAREST_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace milepost {

// The candidate with the fewest insertions, deletions, replacements and swaps of neighbours (case
// and the kind of separator do not count), when that is at most a third of the longer name and at
// least 1 is allowed. Ties go to the first. Names over 64 characters have no neighbour.
std::optional<std::string> NearestName(absl::string_view typed,
                                       const std::vector<std::string>& candidates);

// "; did you mean 'layers'?" or "".
std::string DidYouMean(absl::string_view typed, const std::vector<std::string>& candidates);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_NEAREST_H_
