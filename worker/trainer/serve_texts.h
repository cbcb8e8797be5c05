// Generates one text after another from a checkpoint: `milepost-trainer serve`. It is told what to
// generate, and answers, in the lines of common/generation_lines.h.
#ifndef MILEPOST_WORKER_TRAINER_SERVE_TEXTS_H_
#define MILEPOST_WORKER_TRAINER_SERVE_TEXTS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "engine/runtime/generation/generator.h"
#include "worker/trainer/stored_model.h"

namespace milepost::worker {

// What a Generator does.
struct TextMaker {
  std::function<absl::Status(absl::Span<const int32_t> prompt, const runtime::GenerateOptions&,
                             const runtime::EmitToken&)>
      generate;
  std::function<absl::Status(absl::Span<const int32_t> text, int64_t best,
                             const runtime::EmitToken&)>
      score;
};

// Answers the lines of `in` on `out` until `in` ends. Blocks. A text ends early at a line `stop`,
// and where nobody reads `out`. What `maker` finds INVALID_ARGUMENT is refused, and the next line
// is read; any other error of it ends this with that error.
absl::Status AnswerLines(const TextMaker& maker, UniqueFd in, int out);

// Loads the model with a window of this many tokens, at most its context; says which on stdout, and
// answers the lines of stdin. Blocks. SIGPIPE must be ignored.
absl::Status ServeTexts(const ModelSource& source, int64_t window);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_SERVE_TEXTS_H_
