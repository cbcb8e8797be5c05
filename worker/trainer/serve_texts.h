// Generates texts side by side from a checkpoint: `milepost-trainer serve`. It is told what to
// generate, and answers, in the lines of common/generation_lines.h.
#ifndef MILEPOST_WORKER_TRAINER_SERVE_TEXTS_H_
#define MILEPOST_WORKER_TRAINER_SERVE_TEXTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "engine/runtime/generation/generator.h"
#include "worker/trainer/stored_model.h"

namespace milepost::worker {

// What a Generator does with several texts.
class TextMaker {
 public:
  virtual ~TextMaker() = default;
  virtual absl::StatusOr<int32_t> Start(absl::Span<const int32_t> prompt,
                                        const runtime::GenerateOptions& options) = 0;
  virtual absl::StatusOr<int32_t> StartScore(absl::Span<const int32_t> text, int64_t best) = 0;
  virtual absl::Status Step(const runtime::EmitTextToken& emit) = 0;
  virtual bool Runs(int32_t text) const = 0;
  virtual void End(int32_t text) = 0;
};

// Answers the lines of `in` on `out` until `in` ends. Blocks. A text ends early at a line `stop`,
// and all where nobody reads `out`. What `maker` finds INVALID_ARGUMENT or RESOURCE_EXHAUSTED as a
// text begins is refused; any other error of it ends this with that error, and so does a line that
// is none of the protocol, with INVALID_ARGUMENT.
absl::Status AnswerLines(TextMaker& maker, UniqueFd in, int out);

// Loads the model with a window of this many tokens, at most its context, for so many texts side by
// side; says which on stdout, and answers the lines of stdin. Blocks. SIGPIPE must be ignored.
absl::Status ServeTexts(const ModelSource& source, int64_t window, int64_t texts);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_SERVE_TEXTS_H_
