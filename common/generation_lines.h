// The lines between `milepost serve` and `milepost-trainer serve`, which makes one text at a time.
//
//   > text 16 0.8 40 1 7 - 104,101,108   tokens, temperature, top_k, top_p, seed, best, the ids
//   < token 108                          for each token, as it is made
//   < end                                or: refused MESSAGE
//   > score 2 104,101,108                best, the ids: how likely is each behind the first?
//   < token 101 -0.5 101:-0.5,7:-1.25    its log-probability, and those of the `best` likeliest
//   < token 108 -6 9:-0.125,101:-3
//   < end
//
// A text with `best` has such figures, too. First of all the trainer writes `model VOCABULARY
// WINDOW`, when it has loaded the model. `stop` ends the text under way at the next token; it may
// cross the text's end, and then does nothing.
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
inline constexpr char kStopLine[] = "stop";

// `text` or `score`, which has only the last two.
struct TextLine {
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

// What the trainer says.
struct TrainerLine {
  enum Kind { kModel, kToken, kEnd, kRefused };

  Kind kind = kEnd;
  int64_t vocabulary = 0;  // of kModel
  int64_t window = 0;      // of kModel: tokens that a prompt and its answer may have
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
