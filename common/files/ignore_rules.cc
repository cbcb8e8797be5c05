#include "common/files/ignore_rules.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace milepost {
namespace {

constexpr char kAnyFolders[] = "**";

bool InClass(absl::string_view name, unsigned char c, bool* known) {
  *known = true;
  if (name == "alnum") return absl::ascii_isalnum(c);
  if (name == "alpha") return absl::ascii_isalpha(c);
  if (name == "blank") return c == ' ' || c == '\t';
  if (name == "cntrl") return absl::ascii_iscntrl(c);
  if (name == "digit") return absl::ascii_isdigit(c);
  if (name == "graph") return absl::ascii_isgraph(c);
  if (name == "lower") return absl::ascii_islower(c);
  if (name == "print") return absl::ascii_isprint(c);
  if (name == "punct") return absl::ascii_ispunct(c);
  if (name == "space") return absl::ascii_isspace(c);
  if (name == "upper") return absl::ascii_isupper(c);
  if (name == "xdigit") return absl::ascii_isxdigit(c);
  *known = false;
  return false;
}

// What stands in brackets, as git reads it.
struct Brackets {
  bool fits = false;
  size_t end = 0;  // behind the "]"
};

class BracketReader {
 public:
  // `at`: behind the "[".
  BracketReader(absl::string_view pattern, size_t at, unsigned char c)
      : pattern_(pattern), at_(at), c_(c) {}

  // Nullopt: they are not closed, or name no known class. Then nothing fits.
  std::optional<Brackets> Read() {
    const bool negated = at_ < pattern_.size() && (pattern_[at_] == '!' || pattern_[at_] == '^');
    if (negated) ++at_;
    const size_t begin = at_;
    for (; at_ < pattern_.size(); ++at_) {
      if (pattern_[at_] == ']' && at_ != begin) return Brackets{fits_ != negated, at_ + 1};
      if (!Member()) return std::nullopt;
    }
    return std::nullopt;
  }

 private:
  // Leaves at_ on its last character.
  bool Member() {
    const bool range = pattern_[at_] == '-' && before_ != 0 && at_ + 1 < pattern_.size() &&
                       pattern_[at_ + 1] != ']';
    if (range) {
      ++at_;
      if (!Unescape()) return false;
      if (c_ >= before_ && c_ <= Here()) fits_ = true;
      before_ = 0;
      return true;
    }
    if (pattern_[at_] == '[' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == ':') {
      const size_t end = pattern_.find(']', at_ + 2);
      if (end == absl::string_view::npos) return false;
      if (end >= at_ + 3 && pattern_[end - 1] == ':') {
        bool known = false;
        fits_ |= InClass(pattern_.substr(at_ + 2, end - at_ - 3), c_, &known);
        at_ = end;
        before_ = 0;
        return known;
      }
    }
    if (!Unescape()) return false;
    if (Here() == c_) fits_ = true;
    before_ = Here();
    return true;
  }
  bool Unescape() { return pattern_[at_] != '\\' || ++at_ < pattern_.size(); }
  unsigned char Here() const { return static_cast<unsigned char>(pattern_[at_]); }

  const absl::string_view pattern_;
  size_t at_;
  const unsigned char c_;
  unsigned char before_ = 0;  // a range may begin with it; 0: none may
  bool fits_ = false;
};

// One character of the name against what stands at pattern[*at]; moves behind it.
bool FitsOne(absl::string_view pattern, size_t* at, char c) {
  const char kind = pattern[*at];
  if (kind == '?') return ++*at, true;
  if (kind == '[') {
    const auto brackets = BracketReader(pattern, *at + 1, static_cast<unsigned char>(c)).Read();
    if (!brackets) return false;
    *at = brackets->end;
    return brackets->fits;
  }
  if (kind == '\\' && ++*at == pattern.size()) return false;
  return pattern[(*at)++] == c;
}

// As "a/**/b" fits "a/b" and "a/x/y/b". Each pair of places is looked at once.
bool FitParts(const std::vector<std::string>& pattern,
              const std::vector<absl::string_view>& parts) {
  // fits[j]: the pattern from i on fits the parts from j on.
  std::vector<bool> fits(parts.size() + 1, false);
  fits[parts.size()] = true;
  for (size_t i = pattern.size(); i-- > 0;) {
    std::vector<bool> next(parts.size() + 1, false);
    const bool any = pattern[i] == kAnyFolders;
    const bool last = i + 1 == pattern.size();
    for (size_t j = parts.size() + 1; j-- > 0;) {
      if (!any) {
        next[j] = j < parts.size() && fits[j + 1] && FitsGlob(pattern[i], parts[j]);
      } else if (last) {
        next[j] = j < parts.size();  // all that is in it, and not itself
      } else {
        next[j] = fits[j] || (j < parts.size() && next[j + 1]);
      }
    }
    fits = std::move(next);
  }
  return fits[0];
}

// Spaces at the end count only behind a backslash.
absl::string_view TrimEnd(absl::string_view line) {
  size_t end = line.size();
  while (end > 0 && line[end - 1] == ' ') {
    size_t slashes = 0;
    while (slashes + 1 < end && line[end - 2 - slashes] == '\\') ++slashes;
    if (slashes % 2 == 1) break;
    --end;
  }
  return line.substr(0, end);
}

}  // namespace

bool FitsGlob(absl::string_view pattern, absl::string_view name) {
  size_t p = 0, n = 0;
  size_t star = absl::string_view::npos, star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_name = n;
      continue;
    }
    if (p < pattern.size() && FitsOne(pattern, &p, name[n])) {
      ++n;
      continue;
    }
    if (star == absl::string_view::npos) return false;
    p = star;  // the last '*' takes one more
    n = ++star_name;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

void IgnoreRules::Add(absl::string_view folder, absl::string_view text) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    if (absl::StartsWith(line, "#")) continue;
    line = TrimEnd(line);
    Rule rule = {.folder = std::string(folder), .parts = {}};
    rule.keeps = absl::ConsumePrefix(&line, "!");
    rule.folders_only = absl::ConsumeSuffix(&line, "/");
    if (line.empty()) continue;
    rule.anchored = absl::StrContains(line, '/');
    absl::ConsumePrefix(&line, "/");
    rule.parts = absl::StrSplit(line, '/');
    rules_.push_back(std::move(rule));
  }
}

bool IgnoreRules::Fits(const Rule& rule, absl::string_view path, bool is_folder) {
  if (rule.folders_only && !is_folder) return false;
  if (!rule.folder.empty()) {
    if (!absl::ConsumePrefix(&path, rule.folder) || !absl::ConsumePrefix(&path, "/")) return false;
  }
  if (!rule.anchored) {
    const size_t slash = path.rfind('/');
    return FitsGlob(rule.parts[0], path.substr(slash == absl::string_view::npos ? 0 : slash + 1));
  }
  return FitParts(rule.parts, absl::StrSplit(path, '/'));
}

bool IgnoreRules::Ignores(absl::string_view path, bool is_folder) const {
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    if (Fits(*rule, path, is_folder)) return !rule->keeps;
  }
  return false;
}

}  // namespace milepost
