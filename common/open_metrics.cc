#include "common/open_metrics.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace milepost {
namespace {

// How much one media range of an Accept header wants `type`; 0: not at all.
double QualityFor(absl::string_view range, absl::string_view type, absl::string_view version) {
  std::vector<absl::string_view> parts = absl::StrSplit(range, ';');
  for (absl::string_view& part : parts) part = absl::StripAsciiWhitespace(part);
  if (!absl::EqualsIgnoreCase(parts[0], type)) return 0;
  double quality = 1;
  for (size_t i = 1; i < parts.size(); ++i) {
    absl::string_view value = parts[i];
    if (absl::ConsumePrefix(&value, "version=") && value != version) return 0;
    if (absl::ConsumePrefix(&value, "q=") && !absl::SimpleAtod(value, &quality)) return 0;
  }
  return quality;
}

// "# HELP NAME TEXT" or "# TYPE NAME KIND": a counter's family is named without _total.
void AppendMetadata(absl::string_view line, std::string* text) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
  if (words.size() != 4) return;  // a comment: OpenMetrics has none
  absl::StrAppend(text, "# ", words[1], " ", absl::StripSuffix(words[2], "_total"), " ");
  const bool help = words[1] == "HELP";
  absl::StrAppend(text, help ? absl::StrReplaceAll(words[3], {{"\"", "\\\""}}) : words[3], "\n");
}

}  // namespace

bool WantsOpenMetrics(absl::string_view accept) {
  double open = 0;
  double plain = 0;
  for (absl::string_view range : absl::StrSplit(accept, ',')) {
    open = std::max(open, QualityFor(range, "application/openmetrics-text", "1.0.0"));
    plain = std::max(plain, QualityFor(range, "text/plain", "0.0.4"));
  }
  return open > 0 && open >= plain;
}

std::string ToOpenMetrics(absl::string_view text) {
  std::string result;
  result.reserve(text.size() + 16);
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "#")) {
      AppendMetadata(line, &result);
    } else {
      absl::StrAppend(&result, line, "\n");
    }
  }
  result.append("# EOF\n");
  return result;
}

}  // namespace milepost
