#include "engine/graph/name_pattern.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace milepost::graph {
namespace {

// The fewest characters to insert, remove or replace in `pattern` until it matches `name` or the
// end of it from behind a dot on; 0: it does.
int Changes(absl::string_view pattern, absl::string_view name) {
  const size_t n = name.size();
  std::vector<int> row(n + 1), next(n + 1);
  for (size_t j = 0; j <= n; ++j) {  // nothing of the pattern used: what comes before is free
    const bool start = j == 0 || name[j - 1] == '.';
    row[j] = start ? 0 : row[j - 1] + 1;
  }
  for (const char p : pattern) {
    for (size_t j = 0; j <= n; ++j) {
      if (p == '*') {
        next[j] = j == 0 ? row[0] : std::min(row[j], next[j - 1]);
        continue;
      }
      next[j] = row[j] + 1;
      if (j == 0) continue;
      const int other = p == '?' || p == name[j - 1] ? 0 : 1;
      next[j] = std::min({next[j], next[j - 1] + 1, row[j - 1] + other});
    }
    std::swap(row, next);
  }
  return row[n];
}

}  // namespace

NamePattern::NamePattern(absl::string_view pattern) {
  for (const char p : pattern) {
    if (p == '*') {
      loops_.resize(std::max(loops_.size(), Word(length_) + 1), 0);
      loops_[Word(length_)] |= Bit(length_);
      continue;
    }
    for (int c = 0; c < 256; ++c) {
      if (p != '?' && static_cast<unsigned char>(p) != c) continue;
      steps_[c].resize(std::max(steps_[c].size(), Word(length_) + 1), 0);
      steps_[c][Word(length_)] |= Bit(length_);
    }
    ++length_;
  }
  const size_t words = Word(length_) + 1;
  loops_.resize(words, 0);
  for (std::vector<uint64_t>& step : steps_) step.resize(words, 0);
}

// Each position of the pattern is a bit: all that may be reached so far are carried along at once.
bool NamePattern::Matches(absl::string_view name) const {
  std::vector<uint64_t> reached(loops_.size(), 0);
  reached[0] = 1;
  for (size_t i = 0; i < name.size(); ++i) {
    const std::vector<uint64_t>& step = steps_[static_cast<unsigned char>(name[i])];
    uint64_t carry = 0;
    for (size_t word = 0; word < reached.size(); ++word) {
      const uint64_t moved = reached[word] & step[word];
      const uint64_t stayed = reached[word] & loops_[word];
      reached[word] = moved << 1 | carry | stayed;
      carry = moved >> 63;
    }
    if (name[i] == '.') reached[0] |= 1;
  }
  return (reached[Word(length_)] & Bit(length_)) != 0;
}

bool MatchesName(absl::string_view pattern, absl::string_view name) {
  return NamePattern(pattern).Matches(name);
}

std::vector<std::string> NearestToPattern(absl::string_view pattern,
                                          const std::vector<std::string>& names, size_t count) {
  std::vector<int> changes;
  for (const std::string& name : names) changes.push_back(Changes(pattern, name));
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return changes[a] < changes[b]; });
  order.resize(std::min(count, order.size()));
  std::vector<std::string> nearest;
  for (size_t i : order) nearest.push_back(names[i]);
  return nearest;
}

}  // namespace milepost::graph
