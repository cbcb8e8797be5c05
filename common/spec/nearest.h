// "Did you mean": finds the valid name nearest to what was typed. Pure and thread-safe.
#ifndef MILEPOST_COMMON_SPEC_NEAREST_H_
#define MILEPOST_COMMON_SPEC_NEAREST_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace milepost {

// The candidate with the fewest insertions, deletions, replacements and swaps of neighbouring
// letters. Case and the kind of separator do not count. The number may be at most a third of the
// longer name, but 1 is always allowed. Ties go to the first candidate. Names over 64 characters
// have no neighbour.
std::optional<std::string> NearestName(absl::string_view typed,
                                       const std::vector<std::string>& candidates);

// A name in other tools for something that a job spec calls differently.
struct OtherName {
  absl::string_view other;  // in lower case, with '_'
  absl::string_view ours;   // one of the candidates, or a path such as train.optimizer.lr
};
absl::Span<const OtherName> OtherNames();

// "; did you mean 'layers'?" or "". Prefers the candidate that other tools call `typed` to the
// nearest name.
std::string DidYouMean(absl::string_view typed, const std::vector<std::string>& candidates);
// Does the same for a field of a job spec. The proposal may be in another place:
// train.optimizer.lr.
std::string DidYouMeanField(absl::string_view typed, const std::vector<std::string>& candidates);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_NEAREST_H_
