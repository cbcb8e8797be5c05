#include "common/spec/nearest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace milepost {
namespace {

constexpr size_t kLongestName = 64;

std::string Folded(absl::string_view name) {
  std::string folded = absl::AsciiStrToLower(name);
  std::replace(folded.begin(), folded.end(), '-', '_');
  return folded;
}

// Optimal string alignment: Levenshtein with swaps of neighbours.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> NearestName(absl::string_view typed,
                                       const std::vector<std::string>& candidates) {
  if (typed.empty() || typed.size() > kLongestName) return std::nullopt;
  const std::string wanted = Folded(typed);
  std::optional<std::string> best;
  size_t best_distance = kLongestName;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestName) continue;
    const size_t distance = Distance(wanted, Folded(candidate));
    const size_t allowed = std::max<size_t>(1, std::max(wanted.size(), candidate.size()) / 3);
    if (distance > allowed || distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string DidYouMean(absl::string_view typed, const std::vector<std::string>& candidates) {
  const std::optional<std::string> nearest = NearestName(typed, candidates);
  return nearest ? absl::StrCat("; did you mean '", *nearest, "'?") : "";
}

}  // namespace milepost
