#include "client/cli/format.h"

#include <google/protobuf/timestamp.pb.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/utf8.h"

namespace milepost::client {
namespace {
// A byte inside a UTF-8 character.
bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }
}  // namespace

std::string HumanBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1023.95 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string HumanCount(double count) {
  if (!std::isfinite(count)) return "-";
  if (count < 999.5) return absl::StrFormat("%.0f", count);
  static constexpr const char* kUnits[] = {"k", "M", "G", "T", "P", "E"};
  int unit = -1;
  while (count >= 999.5 && unit < 5) {
    count /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.*f%s", count < 99.95 ? 1 : 0, count, kUnits[unit]);
}

std::string HumanDuration(absl::Duration time) {
  if (time == absl::InfiniteDuration()) return "-";
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(time));
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  if (seconds < 86400) return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
  return absl::StrFormat("%dd%dh", seconds / 86400, seconds / 3600 % 24);
}

std::string LossText(double loss) { return std::isnan(loss) ? "-" : absl::StrFormat("%.4f", loss); }

std::string RateText(double learning_rate) { return absl::StrFormat("%.2e", learning_rate); }

absl::Time TimeOf(const google::protobuf::Timestamp& timestamp) {
  if (timestamp.seconds() == 0 && timestamp.nanos() == 0) return absl::InfinitePast();
  return absl::FromUnixSeconds(timestamp.seconds()) + absl::Nanoseconds(timestamp.nanos());
}

std::string AgeText(const google::protobuf::Timestamp& since, absl::Time now) {
  const absl::Time time = TimeOf(since);
  return time == absl::InfinitePast() ? "-" : HumanDuration(now - time);
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  if (TimeOf(time) == absl::InfinitePast()) return "-";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", TimeOf(time), absl::UTCTimeZone());
}

namespace {

// Unicode's controls of direction (UAX #9), which show a line in another order than it has: U+061C,
// U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069.
bool TurnsText(absl::string_view character) {
  if (character == "\xd8\x9c") return true;
  if (character.size() != 3 || character.substr(0, 1) != "\xe2") return false;
  const auto middle = static_cast<unsigned char>(character[1]);
  const auto last = static_cast<unsigned char>(character[2]);
  if (middle == 0x80) return last == 0x8e || last == 0x8f || (last >= 0xaa && last <= 0xae);
  return middle == 0x81 && last >= 0xa6 && last <= 0xa9;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    size_t size = 1;
    Utf8Checker checker;
    while (at + size < text.size() && Continues(text[at + size]) && size < 4) ++size;
    while (size > 1 && !(Utf8Checker().Feed(text.substr(at, size)))) --size;
    const absl::string_view character = text.substr(at, size);
    const auto byte = static_cast<unsigned char>(character[0]);
    const bool valid = checker.Feed(character) && checker.Finish();
    // U+0080 to U+009F, two bytes in UTF-8, are control characters too.
    const bool high_control =
        byte == 0xc2 && size == 2 && static_cast<unsigned char>(character[1]) < 0xa0;
    if (!valid) {
      result += "\xef\xbf\xbd";
    } else if (byte < ' ' || byte == 0x7f || high_control || TurnsText(character)) {
      result += '?';
    } else {
      result.append(character.data(), character.size());
    }
    at += size;
  }
  return result;
}

std::string ForTerminal(absl::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t end = text.find_first_of("\n\t");
    result += Printable(text.substr(0, end));
    if (end == absl::string_view::npos) break;
    result += text[end];
    text.remove_prefix(end + 1);
  }
  return result;
}

std::string ShellWord(absl::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_./:=,@%+-", c);
  });
  if (plain) return std::string(text);
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

size_t ColumnsOf(absl::string_view text) {
  size_t columns = 0;
  for (const char c : text) columns += Continues(c) ? 0 : 1;
  return columns;
}

std::string FitTo(absl::string_view text, size_t width) {
  std::string printable = Printable(text);
  if (ColumnsOf(printable) <= width) return printable;
  if (width == 0) return "";
  size_t columns = 0;
  size_t end = 0;
  for (; end < printable.size(); ++end) {
    if (!Continues(printable[end]) && columns++ == width - 1) break;
  }
  return printable.substr(0, end) + "…";
}

}  // namespace milepost::client
