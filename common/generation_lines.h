// The lines between `milepost serve` and `milepost-trainer serve`, which makes one text at a time.
//
//   > text 16 0.8 40 1 7 104,101,108     tokens, temperature, top_k, top_p, seed, the prompt's ids
//   < token 108                          for each token, as it is made
//   < end                                or: refused MESSAGE
//
// First of all the trainer writes `model VOCABULARY WINDOW`, when it has loaded the model. `stop`
// ends the text under way at the next token; it may cross the text's end, and then does nothing.
// Pure; thread-safe.
#ifndef MILEPOST_COMMON_GENERATION_LINES_H_
#define MILEPOST_COMMON_GENERATION_LINES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost {

// Of either direction.
inline constexpr size_t kMostGenerationLineBytes = 16 << 20;
inline constexpr char kStopLine[] = "stop";

struct TextLine {
  int64_t tokens = 0;
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 0;
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
  int32_t token = 0;       // of kToken
  std::string message;     // of kRefused

  bool operator==(const TrainerLine&) const = default;
};

std::string FormatTrainerLine(const TrainerLine& line);
// INVALID_ARGUMENT: it is not such a line.
absl::StatusOr<TrainerLine> ParseTrainerLine(absl::string_view line);

}  // namespace milepost

#endif  // MILEPOST_COMMON_GENERATION_LINES_H_
