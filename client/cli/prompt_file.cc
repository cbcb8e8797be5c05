#include "client/cli/prompt_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

using PromptJson = nlohmann::ordered_json;

absl::StatusOr<std::string> PromptOfLine(absl::string_view line, bool json) {
  if (line.empty()) return absl::InvalidArgumentError("an empty line is no prompt");
  if (!json) return std::string(line);
  const PromptJson read = PromptJson::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto prompt = read.is_object() ? read.find("prompt") : read.end();
  if (prompt == read.end() || !prompt->is_string()) {
    return absl::InvalidArgumentError("not an object with a text: {\"prompt\": \"Once\"}");
  }
  return prompt->get<std::string>();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParsePrompts(const std::string& path,
                                                      absl::string_view text) {
  const bool json = absl::EndsWith(path, ".jsonl");
  absl::ConsumeSuffix(&text, "\n");
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no prompt"));
  std::vector<std::string> prompts;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    auto prompt = PromptOfLine(line, json);
    if (!prompt.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", prompts.size() + 1, ": ", prompt.status().message()));
    }
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

PromptTexts::PromptTexts(std::vector<std::string> prompts, std::vector<int32_t> ends,
                         int64_t tokens)
    : prompts_(std::move(prompts)),
      ends_(std::move(ends)),
      tokens_(tokens),
      texts_(prompts_.size()) {}

bool PromptTexts::Take(size_t text, int32_t token, absl::string_view bytes) {
  Text& its = texts_[text];
  its.stopped = std::binary_search(ends_.begin(), ends_.end(), token);
  if (!its.stopped) absl::StrAppend(&its.text, its.utf8.Feed(bytes));
  its.ended = its.stopped || ++its.tokens == tokens_;
  return !its.ended;
}

std::string PromptTexts::Ready() {
  std::string lines;
  for (; told_ < texts_.size() && texts_[told_].ended; ++told_) {
    Text& text = texts_[told_];
    const PromptJson line = {{"prompt", prompts_[told_]},
                             {"text", text.text + text.utf8.Rest()},
                             {"tokens", text.tokens},
                             {"finish_reason", text.stopped ? "stop" : "length"}};
    absl::StrAppend(&lines, line.dump(-1, ' ', false, PromptJson::error_handler_t::replace), "\n");
    text = {.ended = true};
  }
  return lines;
}

}  // namespace milepost::client
