#include "engine/data/images/shard_index.h"

#include <limits>
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
  explicit Sample(absl::string_view bytes) : bytes_(bytes) {}

  const std::string& key() const { return key_; }
  void Begin(std::string key, int64_t offset) {
    *this = Sample(bytes_);
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
      if (member.size > kMaxClassBytes || !ReadLabel(member)) {
        return Bad("has a .cls that is not a number from 0 to 2147483647");
      }
    }
    return absl::OkStatus();
  }

  // Samples of other things altogether are left out.
  absl::Status Finish(std::vector<ShardEntry>* entries) const {
    if (!has_image_ && !has_label_) return absl::OkStatus();
    if (!has_image_) return Bad("has no .jpg, .jpeg or .png beside its .cls");
    if (!has_label_) return Bad("has no .cls beside its image");
    entries->push_back(entry_);
    return absl::OkStatus();
  }

 private:
  bool ReadLabel(const TarMember& member) {
    const absl::string_view text = absl::StripAsciiWhitespace(
        bytes_.substr(static_cast<size_t>(member.offset), static_cast<size_t>(member.size)));
    return absl::SimpleAtoi(text, &entry_.label) && entry_.label >= 0;
  }
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("the sample '", absl::CHexEscape(key_), "' at byte ", begin_, " ", what));
  }

  absl::string_view bytes_;
  std::string key_;
  int64_t begin_ = 0;
  ShardEntry entry_;
  bool has_image_ = false;
  bool has_label_ = false;
};

}  // namespace

absl::StatusOr<std::vector<ShardEntry>> IndexShard(absl::string_view bytes) {
  std::vector<ShardEntry> entries;
  TarScanner scanner(bytes);
  TarMember member;
  Sample sample(bytes);
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
      MP_RETURN_IF_ERROR(sample.Finish(&entries));
      sample.Begin(std::move(key), member.offset - kTarBlock);
    }
    MP_RETURN_IF_ERROR(sample.Add(member, absl::AsciiStrToLower(member.name.substr(dot + 1))));
  }
  MP_RETURN_IF_ERROR(sample.Finish(&entries));
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
