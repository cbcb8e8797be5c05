#include "common/generation_lines.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace milepost {
namespace {

absl::Status NoSuchLine(absl::string_view line) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a line of this protocol: \"", line.substr(0, 80), "\""));
}

}  // namespace

std::string FormatTextLine(const TextLine& text) {
  // 17 digits give a double back as it was.
  return absl::StrFormat("text %d %.17g %d %.17g %d %s", text.tokens, text.temperature, text.top_k,
                         text.top_p, text.seed, absl::StrJoin(text.prompt, ","));
}

absl::StatusOr<TextLine> ParseTextLine(absl::string_view line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  TextLine text;
  const bool numbers =
      parts.size() == 7 && parts[0] == "text" && absl::SimpleAtoi(parts[1], &text.tokens) &&
      absl::SimpleAtod(parts[2], &text.temperature) && absl::SimpleAtoi(parts[3], &text.top_k) &&
      absl::SimpleAtod(parts[4], &text.top_p) && absl::SimpleAtoi(parts[5], &text.seed);
  if (!numbers) return NoSuchLine(line);
  if (parts[6].empty()) return text;
  for (absl::string_view id : absl::StrSplit(parts[6], ',')) {
    if (!absl::SimpleAtoi(id, &text.prompt.emplace_back())) return NoSuchLine(line);
  }
  return text;
}

std::string FormatTrainerLine(const TrainerLine& line) {
  switch (line.kind) {
    case TrainerLine::kModel:
      return absl::StrCat("model ", line.vocabulary, " ", line.window);
    case TrainerLine::kToken:
      return absl::StrCat("token ", line.token);
    case TrainerLine::kEnd:
      return "end";
    case TrainerLine::kRefused:
      break;
  }
  std::string message = line.message;
  std::replace(message.begin(), message.end(), '\n', ' ');
  return absl::StrCat("refused ", message);
}

absl::StatusOr<TrainerLine> ParseTrainerLine(absl::string_view line) {
  TrainerLine parsed;
  absl::string_view rest = line;
  if (rest == "end") return parsed;
  if (absl::ConsumePrefix(&rest, "token ")) {
    parsed.kind = TrainerLine::kToken;
    if (absl::SimpleAtoi(rest, &parsed.token)) return parsed;
  } else if (absl::ConsumePrefix(&rest, "refused ")) {
    parsed.kind = TrainerLine::kRefused;
    parsed.message = std::string(rest);
    return parsed;
  } else if (absl::ConsumePrefix(&rest, "model ")) {
    parsed.kind = TrainerLine::kModel;
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, ' ');
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &parsed.vocabulary) &&
        absl::SimpleAtoi(parts[1], &parsed.window)) {
      return parsed;
    }
  }
  return NoSuchLine(line);
}

}  // namespace milepost
