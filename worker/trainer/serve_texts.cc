#include "worker/trainer/serve_texts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/generation_lines.h"
#include "common/line_pipe.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

absl::Status Make(const TextMaker& maker, const TextLine& text, const runtime::EmitToken& emit) {
  if (text.scored) return maker.score(text.prompt, text.best.value_or(0), emit);
  return maker.generate(text.prompt,
                        {.tokens = text.tokens,
                         .temperature = text.temperature,
                         .top_k = text.top_k,
                         .top_p = text.top_p,
                         .seed = text.seed,
                         .best = text.best},
                        emit);
}

// Makes or scores one text. Returns its last line.
absl::StatusOr<TrainerLine> AnswerText(const TextMaker& maker, const TextLine& text,
                                       LineReader& lines, int out) {
  const bool scored = text.scored || text.best.has_value();
  const auto emit = [&](const TokenScore& token) {
    const TrainerLine line = {.kind = TrainerLine::kToken, .token = token, .scored = scored};
    if (!WriteLine(out, FormatTrainerLine(line)).ok()) return false;
    // Whoever asks sends nothing but `stop` before the end of a text.
    if (!lines.Ready()) return true;
    lines.Next().status().IgnoreError();
    return false;
  };
  const absl::Status made = Make(maker, text, emit);
  if (made.ok()) return TrainerLine{.kind = TrainerLine::kEnd};
  if (!absl::IsInvalidArgument(made)) return made;
  return TrainerLine{.kind = TrainerLine::kRefused, .message = std::string(made.message())};
}

}  // namespace

absl::Status AnswerLines(const TextMaker& maker, UniqueFd in, int out) {
  LineReader lines(std::move(in), kMostGenerationLineBytes);
  while (true) {
    const auto line = lines.Next();
    if (absl::IsOutOfRange(line.status())) return absl::OkStatus();
    if (!line.ok()) return line.status();
    if (*line == kStopLine) continue;  // it crossed the end of its text
    MP_ASSIGN_OR_RETURN(const TextLine text, ParseTextLine(*line));
    MP_ASSIGN_OR_RETURN(const TrainerLine last, AnswerText(maker, text, lines, out));
    const absl::Status told = WriteLine(out, FormatTrainerLine(last));
    if (absl::IsUnavailable(told)) return absl::OkStatus();  // nobody asks any more
    MP_RETURN_IF_ERROR(told);
  }
}

absl::Status ServeTexts(const ModelSource& source, int64_t window) {
  MP_ASSIGN_OR_RETURN(const StoredModel stored, StoredModel::Open(source));
  window = std::min(window, stored.context());
  MP_ASSIGN_OR_RETURN(const auto generator, stored.Load(window, /*scores=*/true));
  const TrainerLine model = {
      .kind = TrainerLine::kModel, .vocabulary = stored.vocabulary(), .window = window};
  MP_RETURN_IF_ERROR(WriteLine(STDOUT_FILENO, FormatTrainerLine(model)));
  const TextMaker maker = {
      .generate =
          [&](absl::Span<const int32_t> prompt, const runtime::GenerateOptions& options,
              const runtime::EmitToken& emit) {
            return generator->Generate(prompt, options, emit);
          },
      .score = [&](absl::Span<const int32_t> text, int64_t best,
                   const runtime::EmitToken& emit) { return generator->Score(text, best, emit); }};
  return AnswerLines(maker, UniqueFd(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)), STDOUT_FILENO);
}

}  // namespace milepost::worker
