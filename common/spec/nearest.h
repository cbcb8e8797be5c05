// "Did you mean": the valid name nearest to what was typed.
#ifndef MILEPOST_COMMON_SPEC_NEAREST_H_
#define MILEPOST_COMMON_SPEC_NEAREST_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace milepost {

// The candidate with the fewest insertions, deletions, replacements and swaps of neighbours (case
// and the kind of separator do not count), when that is at most a third of the longer name and at
// least 1 is allowed. Ties go to the first. Names over 64 characters have no neighbour.
std::optional<std::string> NearestName(absl::string_view typed,
                                       const std::vector<std::string>& candidates);

// What other tools call something that a job spec has under another name.
struct OtherName {
  absl::string_view other;  // folded: lower case, '_'
  absl::string_view ours;   // one of the candidates, or a path such as train.optimizer.lr
};
absl::Span<const OtherName> OtherNames();

// "; did you mean 'layers'?" or "": the candidate that other tools call so, else the nearest name.
std::string DidYouMean(absl::string_view typed, const std::vector<std::string>& candidates);
// The same of a field of a job spec, whose place there may be another one: train.optimizer.lr.
std::string DidYouMeanField(absl::string_view typed, const std::vector<std::string>& candidates);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_NEAREST_H_
