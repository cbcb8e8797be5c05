// For tests: a model whose tokens are bytes and which says what it is told to. A token of 256 ends
// an answer.
#ifndef MILEPOST_CLIENT_SERVE_FAKE_TEXT_MODEL_H_
#define MILEPOST_CLIENT_SERVE_FAKE_TEXT_MODEL_H_

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
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
  // The last text.
  TextLine asked() const {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }

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
  absl::Status Score(absl::Span<const TextLine> texts, const Left& left,
                     const EmitScore& emit) override {
    for (size_t text = 0; text < texts.size() && !left(); ++text) {
      if (!error_.ok()) return error_;
      const std::vector<int32_t>& prompt = texts[text].prompt;
      for (size_t i = 1; i < prompt.size(); ++i) {
        if (!emit(text, ScoreOf(prompt[i], texts[text].best.value_or(0)))) break;
      }
    }
    return absl::OkStatus();
  }
  // A token of each text in turns.
  absl::Status Generate(absl::Span<const TextLine> texts, bool /*whole_text*/, const Left& left,
                        const EmitPiece& emit) override {
    std::vector<int64_t> made(texts.size(), 0);
    for (size_t going = texts.size(); going > 0;) {
      going = 0;
      for (size_t i = 0; i < texts.size(); ++i) {
        if (made[i] < 0 || (made[i] == 0 && left())) continue;
        Asked(texts[i]);
        before_();
        if (!error_.ok()) return error_;
        const bool more = Emit(texts[i], made[i]++, i, emit);
        if (!more || made[i] == texts[i].tokens) made[i] = -1;
        going += made[i] < 0 ? 0 : 1;
      }
    }
    return absl::OkStatus();
  }

 private:
  void Asked(const TextLine& text) {
    absl::MutexLock lock(&mutex_);
    asked_ = text;
  }
  bool Emit(const TextLine& text, int64_t place, size_t which, const EmitPiece& emit) {
    ++made_;
    const int64_t best = text.best.value_or(0);
    const auto at = static_cast<size_t>(place);
    if (ends_itself_ && at == says_.size()) {
      emit(which, ScoreOf(256, best), "");
      return false;
    }
    const char c = says_[at % says_.size()];
    return emit(which, ScoreOf(static_cast<unsigned char>(c), best), absl::string_view(&c, 1));
  }

  const std::string says_;
  const std::function<void()> before_;
  TextModelFacts facts_;
  bool ends_itself_ = true;
  absl::Status error_;
  mutable absl::Mutex mutex_;
  TextLine asked_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> made_ = 0;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_FAKE_TEXT_MODEL_H_
