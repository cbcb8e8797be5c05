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

std::string FormatChoice(const TokenChoice& choice, absl::string_view between) {
  return absl::StrFormat("%d%s%.17g", choice.token, between, choice.log_prob);
}

std::string FormatToken(const TrainerLine& line) {
  if (!line.scored) return absl::StrCat("token ", line.token.token.token);
  std::string text = absl::StrCat("token ", FormatChoice(line.token.token, " "));
  for (size_t i = 0; i < line.token.best.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ",", FormatChoice(line.token.best[i], ":"));
  }
  return text;
}

bool ParseChoice(absl::string_view text, TokenChoice* choice) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  return parts.size() == 2 && absl::SimpleAtoi(parts[0], &choice->token) &&
         absl::SimpleAtod(parts[1], &choice->log_prob);
}

// What follows `token `.
bool ParseToken(absl::string_view rest, TrainerLine* line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, ' ');
  line->kind = TrainerLine::kToken;
  TokenScore& score = line->token;
  if (parts.size() > 3 || !absl::SimpleAtoi(parts[0], &score.token.token)) return false;
  line->scored = parts.size() > 1;
  if (line->scored && !absl::SimpleAtod(parts[1], &score.token.log_prob)) return false;
  if (parts.size() < 3) return true;
  for (absl::string_view choice : absl::StrSplit(parts[2], ',')) {
    if (!ParseChoice(choice, &score.best.emplace_back())) return false;
  }
  return true;
}

}  // namespace

std::string FormatTextLine(const TextLine& text) {
  const std::string ids = absl::StrJoin(text.prompt, ",");
  const std::string best = text.best.has_value() ? absl::StrCat(*text.best) : "-";
  if (text.scored) return absl::StrCat("score ", best, " ", ids);
  // 17 digits give a double back as it was.
  return absl::StrFormat("text %d %.17g %d %.17g %d %s %s", text.tokens, text.temperature,
                         text.top_k, text.top_p, text.seed, best, ids);
}

absl::StatusOr<TextLine> ParseTextLine(absl::string_view line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  TextLine text;
  text.scored = parts.size() == 3 && parts[0] == "score";
  const bool numbers =
      text.scored ||
      (parts.size() == 8 && parts[0] == "text" && absl::SimpleAtoi(parts[1], &text.tokens) &&
       absl::SimpleAtod(parts[2], &text.temperature) && absl::SimpleAtoi(parts[3], &text.top_k) &&
       absl::SimpleAtod(parts[4], &text.top_p) && absl::SimpleAtoi(parts[5], &text.seed));
  if (!numbers) return NoSuchLine(line);
  const absl::string_view best = parts[parts.size() - 2];
  if (best != "-" && !absl::SimpleAtoi(best, &text.best.emplace())) return NoSuchLine(line);
  const absl::string_view ids = parts.back();
  if (ids.empty()) return text;
  for (absl::string_view id : absl::StrSplit(ids, ',')) {
    if (!absl::SimpleAtoi(id, &text.prompt.emplace_back())) return NoSuchLine(line);
  }
  return text;
}

std::string FormatTrainerLine(const TrainerLine& line) {
  switch (line.kind) {
    case TrainerLine::kModel:
      return absl::StrCat("model ", line.vocabulary, " ", line.window);
    case TrainerLine::kToken:
      return FormatToken(line);
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
    if (ParseToken(rest, &parsed)) return parsed;
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
