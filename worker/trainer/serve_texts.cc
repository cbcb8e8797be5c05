#include "worker/trainer/serve_texts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/generation_lines.h"
#include "common/line_pipe.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

// Texts under way, by the maker's name for them.
class TextAnswers {
 public:
  TextAnswers(TextMaker& maker, int out) : maker_(maker), out_(out) {}

  bool idle() const { return texts_.empty(); }
  // OUT_OF_RANGE: nobody reads the answers any more.
  absl::Status Take(const std::string& line) {
    if (const auto stopped = ParseStopLine(line); stopped.has_value()) return Stop(*stopped);
    MP_ASSIGN_OR_RETURN(const TextLine text, ParseTextLine(line));
    if (Find(text.number) != texts_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("text ", text.number, " is under way already"));
    }
    const auto begun = Start(text);
    if (absl::IsInvalidArgument(begun.status()) || absl::IsResourceExhausted(begun.status())) {
      return Say({.kind = TrainerLine::kRefused,
                  .number = text.number,
                  .message = std::string(begun.status().message())});
    }
    MP_RETURN_IF_ERROR(begun.status());
    texts_[*begun] = {text.number, text.scored || text.best.has_value()};
    return SayEnds();  // there may be nothing to make
  }
  absl::Status Step() {
    absl::Status told;
    MP_RETURN_IF_ERROR(maker_.Step([&](int32_t text, const TokenScore& token) {
      const Text& its = texts_.at(text);
      if (told.ok()) {
        told = Say({.kind = TrainerLine::kToken,
                    .number = its.number,
                    .token = token,
                    .scored = its.scored});
      }
      return told.ok();
    }));
    MP_RETURN_IF_ERROR(told);
    return SayEnds();
  }

 private:
  struct Text {
    int64_t number = 0;
    bool scored = false;
  };

  std::map<int32_t, Text>::iterator Find(int64_t number) {
    return std::find_if(texts_.begin(), texts_.end(),
                        [&](const auto& text) { return text.second.number == number; });
  }
  absl::StatusOr<int32_t> Start(const TextLine& text) {
    if (text.scored) return maker_.StartScore(text.prompt, text.best.value_or(0));
    return maker_.Start(text.prompt, {.tokens = text.tokens,
                                      .temperature = text.temperature,
                                      .top_k = text.top_k,
                                      .top_p = text.top_p,
                                      .seed = text.seed,
                                      .best = text.best});
  }
  // Of a text that has ended already it came too late.
  absl::Status Stop(int64_t number) {
    const auto text = Find(number);
    if (text == texts_.end()) return absl::OkStatus();
    maker_.End(text->first);
    return SayEnds();
  }
  absl::Status SayEnds() {
    for (auto text = texts_.begin(); text != texts_.end();) {
      if (maker_.Runs(text->first)) {
        ++text;
        continue;
      }
      MP_RETURN_IF_ERROR(Say({.kind = TrainerLine::kEnd, .number = text->second.number}));
      text = texts_.erase(text);
    }
    return absl::OkStatus();
  }
  absl::Status Say(const TrainerLine& line) const {
    const absl::Status told = WriteLine(out_, FormatTrainerLine(line));
    return absl::IsUnavailable(told) ? absl::OutOfRangeError(told.message()) : told;
  }

  TextMaker& maker_;
  const int out_;
  std::map<int32_t, Text> texts_;
};

// Until there is nobody who asks or reads: OUT_OF_RANGE.
absl::Status AnswerAll(TextAnswers& answers, LineReader& lines) {
  while (true) {
    while (answers.idle() || lines.Ready()) {
      MP_ASSIGN_OR_RETURN(const std::string line, lines.Next());
      MP_RETURN_IF_ERROR(answers.Take(line));
    }
    MP_RETURN_IF_ERROR(answers.Step());
  }
}

class GeneratorMaker : public TextMaker {
 public:
  explicit GeneratorMaker(runtime::Generator& generator) : generator_(generator) {}
  absl::StatusOr<int32_t> Start(absl::Span<const int32_t> prompt,
                                const runtime::GenerateOptions& options) override {
    return generator_.Start(prompt, options);
  }
  absl::StatusOr<int32_t> StartScore(absl::Span<const int32_t> text, int64_t best) override {
    return generator_.StartScore(text, best);
  }
  absl::Status Step(const runtime::EmitTextToken& emit) override { return generator_.Step(emit); }
  bool Runs(int32_t text) const override { return generator_.Runs(text); }
  void End(int32_t text) override { generator_.End(text); }

 private:
  runtime::Generator& generator_;
};

}  // namespace

absl::Status AnswerLines(TextMaker& maker, UniqueFd in, int out) {
  LineReader lines(std::move(in), kMostGenerationLineBytes);
  TextAnswers answers(maker, out);
  const absl::Status ended = AnswerAll(answers, lines);
  return absl::IsOutOfRange(ended) ? absl::OkStatus() : ended;
}

absl::Status ServeTexts(const ModelSource& source, int64_t window, int64_t texts) {
  MP_ASSIGN_OR_RETURN(const StoredModel stored, StoredModel::Open(source));
  window = std::min(window, stored.context());
  MP_ASSIGN_OR_RETURN(const auto generator,
                      stored.Load({.window = window, .scores = true, .texts = texts}));
  const TrainerLine model = {.kind = TrainerLine::kModel,
                             .vocabulary = stored.vocabulary(),
                             .window = window,
                             .texts = texts};
  MP_RETURN_IF_ERROR(WriteLine(STDOUT_FILENO, FormatTrainerLine(model)));
  GeneratorMaker maker(*generator);
  return AnswerLines(maker, UniqueFd(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)), STDOUT_FILENO);
}

}  // namespace milepost::worker
