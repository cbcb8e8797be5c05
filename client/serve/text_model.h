// A model that goes on with texts, one at a time, as a server sees it.
#ifndef MILEPOST_CLIENT_SERVE_TEXT_MODEL_H_
#define MILEPOST_CLIENT_SERVE_TEXT_MODEL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/generation_lines.h"

namespace milepost::client {

struct TextModelFacts {
  int64_t vocabulary = 0;
  int64_t window = 0;         // tokens that a prompt and its answer may have together
  std::vector<int32_t> ends;  // tokens that end an answer, sorted
  absl::Status chat;          // OK, or why there are no chats, and what to do
};

// One thread at a time, except for facts().
class TextModel {
 public:
  virtual ~TextModel() = default;
  // Stays as it is.
  virtual const TextModelFacts& facts() const = 0;

  // The ids of a text, or of a chat (TextRequest). INVALID_ARGUMENT: the text has no tokens, or the
  // template refuses the messages. UNAVAILABLE: the model has ended. Both block.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text) = 0;
  virtual absl::StatusOr<std::vector<int32_t>> EncodeChat(const std::string& messages,
                                                          const std::string& arguments) = 0;

  // What each of the ids adds to the text of them all, in bytes. The texts of tokens by themselves;
  // one that is a part of a character is named otherwise. UNAVAILABLE: the model has ended. Both
  // block.
  virtual absl::StatusOr<std::vector<std::string>> Decode(absl::Span<const int32_t> ids) = 0;
  virtual absl::StatusOr<std::vector<std::string>> TokenTexts(absl::Span<const int32_t> ids) = 0;

  // Calls `emit` with each new token and what it adds to the text, in bytes, which may be a part of
  // a character. Ends after text.tokens, or where `emit` returns false. `whole_text`: the text
  // begins with the prompt, so that the first token is written as one behind it. Where text.best is
  // given, tokens have log-probabilities.
  // INVALID_ARGUMENT: an option is out of range. UNAVAILABLE: the model has ended. Blocks.
  virtual absl::Status Generate(
      const TextLine& text, bool whole_text,
      const std::function<bool(const TokenScore& token, absl::string_view bytes)>& emit) = 0;
  // Calls `emit` with each token of a text behind the first, and how likely it is there, until it
  // returns false. Errors are Generate's. Blocks.
  virtual absl::Status Score(const std::vector<int32_t>& text, int64_t best,
                             const std::function<bool(const TokenScore& token)>& emit) = 0;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_TEXT_MODEL_H_
