#include "common/generation_lines.h"

#include <algorithm>
#include <utility>

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
  if (!line.scored) return absl::StrCat("token ", line.number, " ", line.token.token.token);
  std::string text = absl::StrCat("token ", line.number, " ", FormatChoice(line.token.token, " "));
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
  if (parts.size() < 2 || parts.size() > 4 || !absl::SimpleAtoi(parts[0], &line->number) ||
      !absl::SimpleAtoi(parts[1], &score.token.token)) {
    return false;
  }
  line->scored = parts.size() > 2;
  if (line->scored && !absl::SimpleAtod(parts[2], &score.token.log_prob)) return false;
  if (parts.size() < 4) return true;
  for (absl::string_view choice : absl::StrSplit(parts[3], ',')) {
    if (!ParseChoice(choice, &score.best.emplace_back())) return false;
  }
  return true;
}

// What follows `model `.
bool ParseModel(absl::string_view rest, TrainerLine* line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, ' ');
  line->kind = TrainerLine::kModel;
  return parts.size() == 3 && absl::SimpleAtoi(parts[0], &line->vocabulary) &&
         absl::SimpleAtoi(parts[1], &line->window) && absl::SimpleAtoi(parts[2], &line->texts);
}

// What follows `refused `.
bool ParseRefusal(absl::string_view rest, TrainerLine* line) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(rest, absl::MaxSplits(' ', 1));
  line->kind = TrainerLine::kRefused;
  line->message = std::string(parts.second);
  return absl::SimpleAtoi(parts.first, &line->number);
}

constexpr char kStopWord[] = "stop ";

}  // namespace

std::string FormatStopLine(int64_t number) { return absl::StrCat(kStopWord, number); }

std::optional<int64_t> ParseStopLine(absl::string_view line) {
  int64_t number = 0;
  if (!absl::ConsumePrefix(&line, kStopWord) || !absl::SimpleAtoi(line, &number)) return {};
  return number;
}

std::string FormatTextLine(const TextLine& text) {
  const std::string ids = absl::StrJoin(text.prompt, ",");
  const std::string best = text.best.has_value() ? absl::StrCat(*text.best) : "-";
  if (text.scored) return absl::StrCat("score ", text.number, " ", best, " ", ids);
  // 17 digits give a double back as it was.
  return absl::StrFormat("text %d %d %.17g %d %.17g %d %s %s", text.number, text.tokens,
                         text.temperature, text.top_k, text.top_p, text.seed, best, ids);
}

absl::StatusOr<TextLine> ParseTextLine(absl::string_view line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  TextLine text;
  text.scored = parts.size() == 4 && parts[0] == "score";
  const bool numbers =
      text.scored ||
      (parts.size() == 9 && parts[0] == "text" && absl::SimpleAtoi(parts[2], &text.tokens) &&
       absl::SimpleAtod(parts[3], &text.temperature) && absl::SimpleAtoi(parts[4], &text.top_k) &&
       absl::SimpleAtod(parts[5], &text.top_p) && absl::SimpleAtoi(parts[6], &text.seed));
  if (!numbers || !absl::SimpleAtoi(parts[1], &text.number)) return NoSuchLine(line);
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
      return absl::StrCat("model ", line.vocabulary, " ", line.window, " ", line.texts);
    case TrainerLine::kToken:
      return FormatToken(line);
    case TrainerLine::kEnd:
      return absl::StrCat("end ", line.number);
    case TrainerLine::kRefused:
      break;
  }
  std::string message = line.message;
  std::replace(message.begin(), message.end(), '\n', ' ');
  return absl::StrCat("refused ", line.number, " ", message);
}

absl::StatusOr<TrainerLine> ParseTrainerLine(absl::string_view line) {
  TrainerLine parsed;
  absl::string_view rest = line;
  bool good = false;
  if (absl::ConsumePrefix(&rest, "token ")) {
    good = ParseToken(rest, &parsed);
  } else if (absl::ConsumePrefix(&rest, "end ")) {
    good = absl::SimpleAtoi(rest, &parsed.number);
  } else if (absl::ConsumePrefix(&rest, "refused ")) {
    good = ParseRefusal(rest, &parsed);
  } else if (absl::ConsumePrefix(&rest, "model ")) {
    good = ParseModel(rest, &parsed);
  }
  if (good) return parsed;
  return NoSuchLine(line);
}

}  // namespace milepost
