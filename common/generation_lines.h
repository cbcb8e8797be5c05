// The lines between `milepost serve` and `milepost-trainer serve`, which makes texts side by side.
//
//   > text 7 16 0.8 40 1 9 - 104,101,108   its number, tokens, temperature, top_k, top_p, seed,
//                                          best, the ids
//   < token 7 108                          for each token, as it is made
//   < end 7                                or: refused 7 MESSAGE
//   > score 8 2 104,101,108                its number, best, the ids: how likely is each behind the
//                                          first?
//   < token 8 101 -0.5 101:-0.5,7:-1.25    its log-probability, and those of the `best` likeliest
//   < token 8 108 -6 9:-0.125,101:-3
//   < end 8
//
// A text with `best` has such figures, too. First of all, when it has loaded the model, the trainer
// writes `model VOCABULARY WINDOW TEXTS`. So many texts may be under way, each with a number of its
// own, and their lines come as they are made. `stop 7` ends a text at the next token; it may cross
// the text's end, and then does nothing.
// Pure; thread-safe.
#ifndef MILEPOST_COMMON_GENERATION_LINES_H_
#define MILEPOST_COMMON_GENERATION_LINES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/token_score.h"

namespace milepost {

// Of either direction.
inline constexpr size_t kMostGenerationLineBytes = 16 << 20;

// `text`; or `score`, which has no fields between the number and `best`.
struct TextLine {
  int64_t number = 0;
  bool scored = false;  // it is `score`
  int64_t tokens = 0;
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 0;
  std::optional<int64_t> best;  // with log-probabilities, and of so many of the likeliest
  std::vector<int32_t> prompt;

  bool operator==(const TextLine&) const = default;
};

std::string FormatTextLine(const TextLine& text);
// INVALID_ARGUMENT: it is not such a line.
absl::StatusOr<TextLine> ParseTextLine(absl::string_view line);

std::string FormatStopLine(int64_t number);
// The text's number; none: it is no such line.
std::optional<int64_t> ParseStopLine(absl::string_view line);

// What the trainer says.
struct TrainerLine {
  enum Kind { kModel, kToken, kEnd, kRefused };

  Kind kind = kEnd;
  int64_t vocabulary = 0;  // of kModel
  int64_t window = 0;      // of kModel: tokens that a prompt and its answer may have
  int64_t texts = 0;       // of kModel: that may be under way
  int64_t number = 0;      // of the others: the text's
  TokenScore token;        // of kToken
  bool scored = false;     // of kToken: it has its log-probability
  std::string message;     // of kRefused

  bool operator==(const TrainerLine&) const = default;
};

std::string FormatTrainerLine(const TrainerLine& line);
// INVALID_ARGUMENT: it is not such a line.
absl::StatusOr<TrainerLine> ParseTrainerLine(absl::string_view line);

}  // namespace milepost

#endif  // MILEPOST_COMMON_GENERATION_LINES_H_
