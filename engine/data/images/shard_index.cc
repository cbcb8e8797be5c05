#include "engine/data/images/shard_index.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "engine/data/images/tar.h"

namespace milepost::data {
namespace {

constexpr int64_t kMaxClassBytes = 32;
constexpr int64_t kMaxShards = 100000;

// The sample whose members are being read.
class Sample {
 public:
  // `heads`: "<head>.cls" of each further task, in lower case.
  Sample(absl::string_view bytes, absl::Span<const std::string> heads)
      : bytes_(bytes), heads_(heads), head_labels_(heads.size()) {}

  const std::string& key() const { return key_; }
  void Begin(std::string key, int64_t offset) {
    *this = Sample(bytes_, heads_);
    key_ = std::move(key);
    begin_ = offset;
  }

  absl::Status Add(const TarMember& member, absl::string_view extension) {
    if (extension == "jpg" || extension == "jpeg" || extension == "png") {
      if (has_image_) return Bad("has two images");
      if (member.size > std::numeric_limits<int32_t>::max()) return Bad("has an image above 2 GiB");
      has_image_ = true;
      entry_.offset = member.offset;
      entry_.size = static_cast<uint32_t>(member.size);
    } else if (extension == "cls") {
      if (has_label_) return Bad("has two classes");
      has_label_ = true;
      if (!ReadLabel(member, 0, &entry_.label)) {
        return Bad("has a .cls that is not a number from 0 to 2147483647");
      }
    }
    return AddHead(member, extension);
  }

  // Samples of other things altogether are left out.
  absl::Status Finish(std::vector<ShardEntry>* entries,
                      std::vector<std::vector<int32_t>>* labels) const {
    if (!has_image_ && !has_label_) return absl::OkStatus();
    if (!has_image_) return Bad("has no .jpg, .jpeg or .png beside its .cls");
    if (!has_label_) return Bad("has no .cls beside its image");
    for (size_t head = 0; head < heads_.size(); ++head) {
      if (!head_labels_[head].has_value()) {
        return Bad(absl::StrCat("has no .", heads_[head], " beside its image; -1 in it: no label"));
      }
      (*labels)[head].push_back(*head_labels_[head]);
    }
    entries->push_back(entry_);
    return absl::OkStatus();
  }

 private:
  absl::Status AddHead(const TarMember& member, absl::string_view extension) {
    for (size_t head = 0; head < heads_.size(); ++head) {
      if (extension != heads_[head]) continue;
      if (head_labels_[head].has_value()) return Bad(absl::StrCat("has two .", extension));
      if (!ReadLabel(member, -1, &head_labels_[head].emplace())) {
        return Bad(
            absl::StrCat("has a .", extension, " that is not a number from -1 to 2147483647"));
      }
    }
    return absl::OkStatus();
  }

  bool ReadLabel(const TarMember& member, int32_t least, int32_t* label) const {
    if (member.size > kMaxClassBytes) return false;
    const absl::string_view text = absl::StripAsciiWhitespace(
        bytes_.substr(static_cast<size_t>(member.offset), static_cast<size_t>(member.size)));
    return absl::SimpleAtoi(text, label) && *label >= least;
  }
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("the sample '", absl::CHexEscape(key_), "' at byte ", begin_, " ", what));
  }

  absl::string_view bytes_;
  absl::Span<const std::string> heads_;
  std::vector<std::optional<int32_t>> head_labels_;
  std::string key_;
  int64_t begin_ = 0;
  ShardEntry entry_;
  bool has_image_ = false;
  bool has_label_ = false;
};

}  // namespace

absl::StatusOr<std::vector<ShardEntry>> IndexShard(absl::string_view bytes,
                                                   absl::Span<const std::string> heads,
                                                   std::vector<std::vector<int32_t>>* labels) {
  std::vector<std::string> extensions;
  for (const std::string& head : heads) {
    extensions.push_back(absl::StrCat(absl::AsciiStrToLower(head), ".cls"));
  }
  std::vector<ShardEntry> entries;
  TarScanner scanner(bytes);
  TarMember member;
  Sample sample(bytes, extensions);
  while (true) {
    MP_ASSIGN_OR_RETURN(const bool more, scanner.Next(&member));
    if (!more) break;
    if (!member.regular) continue;
    const size_t slash = member.name.rfind('/');
    const size_t base = slash == std::string::npos ? 0 : slash + 1;
    const size_t dot = member.name.find('.', base);
    if (dot == std::string::npos || dot == base) continue;  // no extension, or hidden
    std::string key = member.name.substr(0, dot);
    if (key != sample.key()) {
      MP_RETURN_IF_ERROR(sample.Finish(&entries, labels));
      sample.Begin(std::move(key), member.offset - kTarBlock);
    }
    MP_RETURN_IF_ERROR(sample.Add(member, absl::AsciiStrToLower(member.name.substr(dot + 1))));
  }
  MP_RETURN_IF_ERROR(sample.Finish(&entries, labels));
  return entries;
}

absl::StatusOr<std::vector<std::string>> ExpandBraces(const std::string& pattern) {
  const size_t open = pattern.find('{'), close = pattern.find('}');
  if (open == std::string::npos && close == std::string::npos) {
    return std::vector<std::string>{pattern};
  }
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(pattern, ": ", what, "; a pattern is like shard-{0000..0099}.tar"));
  };
  if (open == std::string::npos || close == std::string::npos || close < open ||
      pattern.find('{', open + 1) != std::string::npos ||
      pattern.find('}', close + 1) != std::string::npos) {
    return bad("braces that are not one pair");
  }
  const std::pair<std::string, std::string> ends =
      absl::StrSplit(pattern.substr(open + 1, close - open - 1), absl::MaxSplits("..", 1));
  int64_t first = 0, last = 0;
  if (ends.first.size() > 9 || ends.second.size() > 9 || !absl::SimpleAtoi(ends.first, &first) ||
      !absl::SimpleAtoi(ends.second, &last) || first < 0 || last < first) {
    return bad("no rising range of numbers");
  }
  if (last - first >= kMaxShards) return bad("more than 100000 shards");
  std::vector<std::string> names;
  for (int64_t number = first; number <= last; ++number) {
    names.push_back(absl::StrFormat("%s%0*d%s", pattern.substr(0, open),
                                    static_cast<int>(ends.first.size()), number,
                                    pattern.substr(close + 1)));
  }
  return names;
}

}  // namespace milepost::data
