// Patterns of parameters' names: `*` stands for any text, also none; `?` for any one character. A
// pattern matches a whole name, or the end of one from behind a dot on.
//
//   const NamePattern pattern("attn.*.weight");
//   pattern.Matches("h.3.attn.c_proj.weight");  // true
//
// Pure.
#ifndef MILEPOST_ENGINE_GRAPH_NAME_PATTERN_H_
#define MILEPOST_ENGINE_GRAPH_NAME_PATTERN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace milepost::graph {

// To be asked for many names: takes time in proportion to a name's length, and to the pattern's in
// words of 64.
class NamePattern {
 public:
  explicit NamePattern(absl::string_view pattern);
  bool Matches(absl::string_view name) const;

 private:
  static size_t Word(size_t position) { return position / 64; }
  static uint64_t Bit(size_t position) { return uint64_t{1} << position % 64; }

  // By position, as bits; a position is how many characters but `*` have been matched.
  std::vector<uint64_t> loops_;                   // where a `*` stands
  std::array<std::vector<uint64_t>, 256> steps_;  // by character: from where it leads on
  size_t length_ = 0;
};
bool MatchesName(absl::string_view pattern, absl::string_view name);

// The names that need the fewest changes to match, best first.
std::vector<std::string> NearestToPattern(absl::string_view pattern,
                                          const std::vector<std::string>& names, size_t count);

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_NAME_PATTERN_H_
