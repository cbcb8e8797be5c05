// For tests: a model whose tokens are bytes and which says what it is told to. A token of 256 ends
// an answer.
#ifndef MILEPOST_CLIENT_SERVE_FAKE_TEXT_MODEL_H_
#define MILEPOST_CLIENT_SERVE_FAKE_TEXT_MODEL_H_

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/serve/text_model.h"

namespace milepost::client {

class FakeTextModel : public TextModel {
 public:
  // `before`: called before each token, on the thread that generates.
  explicit FakeTextModel(
      std::string says, std::function<void()> before = [] {})
      : says_(std::move(says)), before_(std::move(before)) {
    facts_.vocabulary = 257;
    facts_.window = 64;
    facts_.ends = {256};
  }

  const TextModelFacts& facts() const override { return facts_; }
  TextModelFacts& its_facts() { return facts_; }
  void set_ends_itself(bool ends) { ends_itself_ = ends; }
  void set_error(absl::Status error) { error_ = std::move(error); }
  // Of all texts.
  int made() const { return made_; }
  const TextLine& asked() const { return asked_; }

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text) override {
    if (text.empty()) return absl::InvalidArgumentError("the prompt gives no tokens");
    return std::vector<int32_t>(text.begin(), text.end());
  }
  absl::StatusOr<std::vector<int32_t>> EncodeChat(const std::string& messages,
                                                  const std::string& arguments) override {
    if (absl::StrContains(messages, "system")) {
      return absl::InvalidArgumentError("the chat template cannot render these messages");
    }
    return Encode("chat");
  }
  absl::StatusOr<std::vector<std::string>> Decode(absl::Span<const int32_t> ids) override {
    std::vector<std::string> texts;
    for (const int32_t id : ids)
      texts.push_back(id == 256 ? "" : std::string(1, static_cast<char>(id)));
    return texts;
  }
  absl::StatusOr<std::vector<std::string>> TokenTexts(absl::Span<const int32_t> ids) override {
    std::vector<std::string> texts;
    for (const int32_t id : ids) {
      texts.push_back(id == 256  ? "<end>"
                      : id < 128 ? std::string(1, static_cast<char>(id))
                                 : absl::StrCat("byte ", id));
    }
    return texts;
  }
  // A token's log-probability is -id / 8; the likeliest are a, b, c, ...
  TokenScore ScoreOf(int32_t token, int64_t best) const {
    TokenScore score = {.token = {token, -token / 8.0}, .best = {}};
    for (int32_t id = 'a'; id < 'a' + best; ++id) score.best.push_back({id, -id / 8.0});
    return score;
  }
  absl::Status Score(const std::vector<int32_t>& text, int64_t best,
                     const std::function<bool(const TokenScore&)>& emit) override {
    if (!error_.ok()) return error_;
    for (size_t i = 1; i < text.size(); ++i) {
      if (!emit(ScoreOf(text[i], best))) break;
    }
    return absl::OkStatus();
  }
  absl::Status Generate(
      const TextLine& text, bool whole_text,
      const std::function<bool(const TokenScore&, absl::string_view)>& emit) override {
    asked_ = text;
    for (int64_t i = 0; i < text.tokens; ++i) {
      before_();
      if (!error_.ok()) return error_;
      ++made_;
      const auto at = static_cast<size_t>(i);
      if (ends_itself_ && at == says_.size()) {
        emit(ScoreOf(256, text.best.value_or(0)), "");
        return absl::OkStatus();
      }
      const char c = says_[at % says_.size()];
      const TokenScore token = ScoreOf(static_cast<unsigned char>(c), text.best.value_or(0));
      if (!emit(token, absl::string_view(&c, 1))) break;
    }
    return absl::OkStatus();
  }

 private:
  const std::string says_;
  const std::function<void()> before_;
  TextModelFacts facts_;
  bool ends_itself_ = true;
  absl::Status error_;
  TextLine asked_;
  std::atomic<int> made_ = 0;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_FAKE_TEXT_MODEL_H_
