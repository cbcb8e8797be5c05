#include "client/serve/model_processes.h"

#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

using nlohmann::json;

constexpr size_t kMostTokenizerLine = 64 << 20;  // the ids of a text, and JSON around them

std::string DumpLine(const json& line) {
  return line.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

absl::StatusOr<std::string> TextIn(const std::string& answer) {
  const json read = json::parse(answer, nullptr, /*allow_exceptions=*/false);
  const auto text = read.is_object() ? read.find("text") : read.end();
  if (text == read.end() || !text->is_string()) {
    return absl::InternalError("the tokenizer's answer has no text");
  }
  return text->get<std::string>();
}

absl::StatusOr<std::vector<std::string>> TextsIn(const std::string& answer, size_t count) {
  const json read = json::parse(answer, nullptr, /*allow_exceptions=*/false);
  const auto list = read.is_object() ? read.find("texts") : read.end();
  const bool good =
      list != read.end() && list->is_array() && list->size() == count &&
      std::all_of(list->begin(), list->end(), [](const json& one) { return one.is_string(); });
  if (!good) return absl::InternalError("the tokenizer's answer has not the texts of its tokens");
  return list->get<std::vector<std::string>>();
}

// As OpenAI's API names what is no character.
std::string NameOfByte(int32_t byte) {
  if (byte < 0x80) return std::string(1, static_cast<char>(byte));
  return absl::StrFormat("bytes:\\x%02x", byte);
}

absl::StatusOr<std::vector<int32_t>> IdsIn(const std::string& answer) {
  const json read = json::parse(answer, nullptr, /*allow_exceptions=*/false);
  std::vector<int32_t> ids;
  const auto list = read.is_object() ? read.find("ids") : read.end();
  if (list == read.end() || !list->is_array()) {
    return absl::InternalError("the tokenizer's answer has no ids");
  }
  for (const json& id : *list) {
    if (!id.is_number_integer()) return absl::InternalError("the tokenizer's ids are no integers");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

ModelProcesses::~ModelProcesses() {
  Cancel();  // so that the trainer's lines end
}

absl::Status ModelProcesses::Spawn(SpawnOptions options, std::optional<Talk>* talk) {
  options.in = Redirect::Pipe();
  options.out = Redirect::Pipe();
  MP_ASSIGN_OR_RETURN(Subprocess process, Subprocess::Spawn(std::move(options)));
  UniqueFd in = process.TakeIn();
  UniqueFd out = process.TakeOut();
  LineReader lines(std::move(out), kMostTokenizerLine, process.pidfd());
  talk->emplace(Talk{std::move(process), std::move(in), std::move(lines)});
  absl::MutexLock lock(&mutex_);
  running_.push_back(&(*talk)->process);
  if (!cancelled_) return absl::OkStatus();
  return absl::CancelledError("interrupted");
}

void ModelProcesses::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (Subprocess* process : running_) process->Signal(SIGKILL).IgnoreError();
}

std::vector<int> ModelProcesses::ends() const {
  std::vector<int> fds;
  if (trainer_.has_value()) fds.push_back(trainer_->process.pidfd());
  if (tokenizer_.has_value()) fds.push_back(tokenizer_->process.pidfd());
  return fds;
}

absl::Status ModelProcesses::Load() {
  // Python reads its files while the trainer reads the model.
  if (HasTokenizer()) MP_RETURN_IF_ERROR(Spawn(options_.tokenizer, &tokenizer_));
  MP_RETURN_IF_ERROR(Spawn(options_.trainer, &trainer_));
  absl::Status loaded = HasTokenizer() ? AwaitTokenizer() : absl::OkStatus();
  if (loaded.ok()) loaded = AwaitTrainer();
  return Finish(loaded);
}

absl::Status ModelProcesses::LoadTokenizer() {
  if (!HasTokenizer()) return absl::OkStatus();
  MP_RETURN_IF_ERROR(Spawn(options_.tokenizer, &tokenizer_));
  return Finish(AwaitTokenizer());
}

absl::Status ModelProcesses::LoadTrainer(SpawnOptions trainer) {
  MP_RETURN_IF_ERROR(Spawn(std::move(trainer), &trainer_));
  return Finish(AwaitTrainer());
}

absl::Status ModelProcesses::Finish(absl::Status loaded) {
  absl::MutexLock lock(&mutex_);
  return cancelled_ ? absl::CancelledError("interrupted") : loaded;
}

absl::Status ModelProcesses::AwaitTrainer() {
  const auto text = trainer_->out.Next();
  const auto line = text.ok() ? ParseTrainerLine(*text) : text.status();
  if (!line.ok() || line->kind != TrainerLine::kModel || line->texts < 1) {
    MP_ASSIGN_OR_RETURN(const ExitResult end, trainer_->process.Wait());
    return absl::InternalError(
        absl::StrCat("the model was not loaded (milepost-trainer: ", end.ToString(), ")"));
  }
  facts_.vocabulary = line->vocabulary;
  facts_.window = line->window;
  facts_.texts = line->texts;
  trainer_texts_.emplace(std::move(trainer_->in), std::move(trainer_->out), facts_.texts);
  if (tokenizer_.has_value()) return absl::OkStatus();
  facts_.chat = absl::InvalidArgumentError(
      "a chat needs a tokenizer with a chat template: start `milepost serve` with --tokenizer "
      "FOLDER, or use /v1/completions");
  if (facts_.vocabulary == 256) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "this model's tokens are not bytes: name its tokenizer with --tokenizer FOLDER");
}

absl::Status ModelProcesses::AwaitTokenizer() {
  const auto line = tokenizer_->out.Next();
  if (!line.ok()) {
    MP_ASSIGN_OR_RETURN(const ExitResult end, tokenizer_->process.Wait());
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer ended with ", end.ToString()));
  }
  const json read = json::parse(*line, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* name) {
    const auto found = read.is_object() ? read.find(name) : read.end();
    return found != read.end() && found->is_string() ? found->get<std::string>() : "";
  };
  if (const std::string package = text("missing"); !package.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("text needs the Python package `", package, "`: pip install '", package,
                     "' (in the environment of the python3 on PATH)"));
  }
  if (const std::string error = text("error"); !error.empty()) {
    return absl::InvalidArgumentError(error);
  }
  MP_ASSIGN_OR_RETURN(facts_.ends, IdsIn(*line));
  std::sort(facts_.ends.begin(), facts_.ends.end());
  if (const std::string why = text("no_chat"); !why.empty()) {
    facts_.chat = absl::InvalidArgumentError(why);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ModelProcesses::AskTokenizer(const std::string& line) {
  absl::MutexLock lock(&tokenizer_mutex_);
  absl::Status asked = WriteLine(tokenizer_->in.get(), line);
  absl::StatusOr<std::string> answer = absl::UnavailableError("");
  if (asked.ok()) answer = tokenizer_->out.Next();
  if (!answer.ok()) return absl::UnavailableError("the tokenizer has ended");
  const json read = json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  const auto error = read.is_object() ? read.find("error") : read.end();
  if (error == read.end() || !error->is_string()) return answer;
  return absl::InvalidArgumentError(error->get<std::string>());
}

absl::StatusOr<std::vector<int32_t>> ModelProcesses::Encode(const std::string& text) {
  if (!tokenizer_.has_value()) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    if (ids.empty()) ids.push_back('\n');  // as `milepost generate` begins
    return ids;
  }
  MP_ASSIGN_OR_RETURN(const std::string answer, AskTokenizer(DumpLine({{"text", text}})));
  return IdsIn(answer);
}

absl::StatusOr<std::vector<int32_t>> ModelProcesses::EncodeChat(const std::string& messages,
                                                                const std::string& arguments) {
  MP_RETURN_IF_ERROR(facts_.chat);
  MP_ASSIGN_OR_RETURN(
      const std::string answer,
      AskTokenizer(absl::StrCat("{\"messages\":", messages, ",\"arguments\":", arguments, "}")));
  return IdsIn(answer);
}

// A text for each of the ids. INTERNAL: the tokenizer has none.
absl::StatusOr<std::vector<std::string>> ModelProcesses::AskTexts(const char* what,
                                                                  absl::Span<const int32_t> ids) {
  const auto answer =
      AskTokenizer(DumpLine({{what, std::vector<int32_t>(ids.begin(), ids.end())}}));
  if (absl::IsInvalidArgument(answer.status())) {
    return absl::InternalError(absl::StrCat("the tokenizer: ", answer.status().message()));
  }
  MP_RETURN_IF_ERROR(answer.status());
  return TextsIn(*answer, ids.size());
}

absl::StatusOr<std::vector<std::string>> ModelProcesses::Decode(absl::Span<const int32_t> ids) {
  if (tokenizer_.has_value()) return AskTexts("decode", ids);
  std::vector<std::string> bytes;
  for (const int32_t id : ids) bytes.emplace_back(1, static_cast<char>(id));
  return bytes;
}

absl::StatusOr<std::vector<std::string>> ModelProcesses::TokenTexts(absl::Span<const int32_t> ids) {
  std::set<int32_t> unknown;
  {
    absl::MutexLock lock(&texts_mutex_);
    for (const int32_t id : ids) {
      if (!token_texts_.contains(id)) unknown.insert(id);
    }
  }
  const std::vector<int32_t> asked(unknown.begin(), unknown.end());
  std::vector<std::string> texts;
  if (!tokenizer_.has_value()) {
    for (const int32_t id : asked) texts.push_back(NameOfByte(id));
  } else if (!asked.empty()) {
    MP_ASSIGN_OR_RETURN(texts, AskTexts("pieces", asked));
  }
  absl::MutexLock lock(&texts_mutex_);
  for (size_t i = 0; i < asked.size(); ++i) token_texts_[asked[i]] = texts[i];
  std::vector<std::string> found;
  for (const int32_t id : ids) found.push_back(token_texts_[id]);
  return found;
}

// What tokens add to their texts: the tokenizer has a stream for each text that has begun.
class ModelProcesses::Streams {
 public:
  Streams(ModelProcesses& model, absl::Span<const TextLine> texts, bool whole_text)
      : model_(model), texts_(texts), whole_text_(whole_text), streams_(texts.size()) {}
  ~Streams() {
    for (size_t text = 0; text < streams_.size(); ++text) End(text);
  }
  // Nothing more is asked of it.
  void End(size_t text) {
    if (!streams_[text].has_value()) return;
    model_.AskTokenizer(DumpLine({{"end", *streams_[text]}})).IgnoreError();
    streams_[text].reset();
  }
  // UNAVAILABLE: the tokenizer has ended. INTERNAL: it refuses.
  absl::StatusOr<std::string> BytesOf(size_t text, int32_t token) {
    if (!model_.tokenizer_.has_value()) return std::string(1, static_cast<char>(token));
    absl::StatusOr<std::string> bytes = Ask(text, token);
    if (!absl::IsInvalidArgument(bytes.status())) return bytes;
    return absl::InternalError(bytes.status().message());
  }

 private:
  absl::StatusOr<std::string> Ask(size_t text, int32_t token) {
    std::optional<int64_t>& stream = streams_[text];
    if (!stream.has_value()) {
      stream = ++model_.streams_;
      const std::vector<int32_t> before =
          whole_text_ ? texts_[text].prompt : std::vector<int32_t>();
      MP_RETURN_IF_ERROR(
          model_.AskTokenizer(DumpLine({{"begin", before}, {"stream", *stream}})).status());
    }
    MP_ASSIGN_OR_RETURN(const std::string answer,
                        model_.AskTokenizer(DumpLine({{"id", token}, {"stream", *stream}})));
    return TextIn(answer);
  }

  ModelProcesses& model_;
  const absl::Span<const TextLine> texts_;
  const bool whole_text_;
  std::vector<std::optional<int64_t>> streams_;
};

absl::Status ModelProcesses::Generate(absl::Span<const TextLine> texts, bool whole_text,
                                      const Left& left, const EmitPiece& emit) {
  Streams streams(*this, texts, whole_text);
  std::vector<int64_t> made(texts.size(), 0);
  absl::Status broken;
  MP_RETURN_IF_ERROR(trainer_texts_->Make(
      texts, [&] { return !broken.ok() || left(); },
      [&](size_t text, const TokenScore& token) {
        if (!broken.ok()) return false;
        const auto bytes = streams.BytesOf(text, token.token.token);
        if (!bytes.ok()) {
          broken = bytes.status();
          return false;
        }
        const bool more = emit(text, token, *bytes);
        if (!more || ++made[text] == texts[text].tokens) streams.End(text);
        return more;
      }));
  return broken;
}

absl::Status ModelProcesses::Score(absl::Span<const TextLine> texts, const Left& left,
                                   const EmitScore& emit) {
  std::vector<TextLine> scored(texts.begin(), texts.end());
  for (TextLine& text : scored) text.scored = true;
  return trainer_texts_->Make(scored, left, emit);
}

}  // namespace milepost::client
