// A model that goes on with texts, several side by side, as a server sees it.
#ifndef MILEPOST_CLIENT_SERVE_TEXT_MODEL_H_
#define MILEPOST_CLIENT_SERVE_TEXT_MODEL_H_

#include <cstddef>
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
  int64_t texts = 1;          // that are made side by side; more wait for their turn
  std::vector<int32_t> ends;  // tokens that end an answer, sorted
  absl::Status chat;          // OK, or why there are no chats, and what to do
};

// Thread-safe.
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

  // What becomes of each of several texts, by its place among them. `emit` returns whether to go on
  // with it. `left`: nobody wants any of them any more: no further one is begun.
  using EmitPiece =
      std::function<bool(size_t text, const TokenScore& token, absl::string_view bytes)>;
  using EmitScore = std::function<bool(size_t text, const TokenScore& token)>;
  using Left = std::function<bool()>;

  // Calls `emit` with each new token and what it adds to the text, in bytes, which may be a part of
  // a character. A text ends after TextLine::tokens, or where `emit` returns false. `whole_text`:
  // texts begin with their prompts, so that the first token is written as one behind them. Where
  // TextLine::best is given, tokens have log-probabilities. TextLine::number does not count.
  // INVALID_ARGUMENT: an option of a text is out of range; then all end. UNAVAILABLE: the model has
  // ended. Blocks until all texts have ended.
  virtual absl::Status Generate(absl::Span<const TextLine> texts, bool whole_text, const Left& left,
                                const EmitPiece& emit) = 0;
  // Calls `emit` with each token behind the first of texts, which are the prompts of `texts`, and
  // how likely it is there. Otherwise as Generate.
  virtual absl::Status Score(absl::Span<const TextLine> texts, const Left& left,
                             const EmitScore& emit) = 0;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_TEXT_MODEL_H_
