#include "client/serve/answer_request.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/serve/api_answer.h"
#include "client/serve/api_error.h"
#include "client/serve/text_pieces.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

// Log-probabilities that an answer to a request holds at once: some 200 MiB with their JSON.
constexpr int64_t kMostTold = 1 << 20;

// What a prompt of the request is called in errors.
std::string NameOf(const TextRequest& request, size_t prompt) {
  if (request.chat) return "messages";
  return request.prompts.size() == 1 ? "prompt" : absl::StrCat("prompt[", prompt, "]");
}

absl::StatusOr<std::vector<int32_t>> IdsOf(const TextRequest& request, size_t prompt,
                                           TextModel& model) {
  if (request.chat) return model.EncodeChat(request.messages, request.template_arguments);
  const RequestPrompt& given = request.prompts[prompt];
  if (!given.ids.has_value()) return model.Encode(given.text);
  return *given.ids;
}

// A tokenizer may have tokens that the model lacks.
absl::Status CheckIds(const std::string& input, absl::Span<const int32_t> ids, int64_t vocabulary) {
  for (const int32_t id : ids) {
    if (id < vocabulary) continue;
    return BadParameter(input, absl::StrCat(input, ": ", id, " is none of the model's token ids, ",
                                            "0 to ", vocabulary - 1));
  }
  return absl::OkStatus();
}

// What is told of all tokens is held until the request is answered.
absl::Status CheckTold(const TextRequest& request, const std::vector<TextLine>& texts) {
  if (!request.best.has_value()) return absl::OkStatus();
  int64_t tokens = 0;
  for (const TextLine& text : texts) {
    tokens += text.tokens + (request.echo ? static_cast<int64_t>(text.prompt.size()) : 0);
  }
  const int64_t told = tokens * request.answers * (*request.best + 1);
  if (told <= kMostTold) return absl::OkStatus();
  return BadParameter(request.chat ? "top_logprobs" : "logprobs",
                      absl::StrCat("up to ", told, " log-probabilities in one answer, at most ",
                                   kMostTold, ": ask for fewer tokens, answers or alternatives"));
}

// What the model is asked for.
absl::StatusOr<TextLine> TextOf(const TextRequest& request, size_t prompt, uint64_t seed,
                                TextModel& model) {
  const std::string input = NameOf(request, prompt);
  auto ids = IdsOf(request, prompt, model);
  if (absl::IsInvalidArgument(ids.status())) return BadParameter(input, ids.status().message());
  MP_RETURN_IF_ERROR(ids.status());
  MP_RETURN_IF_ERROR(CheckIds(input, *ids, model.facts().vocabulary));
  const int64_t window = model.facts().window;
  const auto length = static_cast<int64_t>(ids->size());
  const int64_t tokens = request.tokens.value_or(std::max<int64_t>(1, window - length));
  if (length + tokens > window) {
    return BadParameter(length + 1 > window ? absl::string_view(input) : "max_tokens",
                        absl::StrCat("this server has room for ", window, " tokens; the ", input,
                                     " have ", length, ", and ", tokens,
                                     " more are asked for (`milepost serve --context` is the "
                                     "number, at most the model's)"),
                        "context_length_exceeded");
  }
  return TextLine{.tokens = tokens,
                  .temperature = request.temperature,
                  .top_k = request.top_k,
                  .top_p = request.top_p,
                  .seed = seed,
                  .best = request.best,
                  .prompt = *std::move(ids)};
}

// Of each prompt.
absl::StatusOr<std::vector<TextLine>> TextsOf(const TextRequest& request, uint64_t seed,
                                              TextModel& model) {
  const size_t prompts = request.chat ? 1 : request.prompts.size();
  std::vector<TextLine> texts;
  for (size_t i = 0; i < prompts; ++i) {
    MP_ASSIGN_OR_RETURN(texts.emplace_back(), TextOf(request, i, seed, model));
  }
  MP_RETURN_IF_ERROR(CheckTold(request, texts));
  return texts;
}

// With the texts of tokens, which are asked for once.
absl::StatusOr<std::vector<AnswerToken>> NameTokens(const std::vector<TokenScore>& scores,
                                                    TextModel& model) {
  std::vector<int32_t> ids;
  for (const TokenScore& score : scores) {
    ids.push_back(score.token.token);
    for (const TokenChoice& choice : score.best) ids.push_back(choice.token);
  }
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> texts, model.TokenTexts(ids));
  auto text = texts.begin();
  std::vector<AnswerToken> tokens;
  for (const TokenScore& score : scores) {
    AnswerToken& token = tokens.emplace_back();
    token.token = {*text++, score.token.log_prob};
    for (const TokenChoice& choice : score.best) token.best.push_back({*text++, choice.log_prob});
  }
  return tokens;
}

// One of the answers under way.
class Answering {
 public:
  // `prompt`: none of a chat. `most`: tokens.
  Answering(const TextRequest& request, AnswerHead head, const RequestPrompt* prompt, int64_t most,
            TextModel& model, TextReply& reply)
      : request_(request),
        head_(std::move(head)),
        prompt_(prompt),
        most_(most),
        model_(model),
        reply_(reply),
        stop_(request.stop) {
    if (request_.best.has_value()) told_.emplace();
  }

  // What comes before the answer. `scores`: of the prompt's tokens behind the first, where they are
  // told.
  absl::Status Begin(const std::vector<int32_t>& ids, const std::vector<TokenScore>& scores) {
    if (request_.stream && request_.chat) reply_.Write(BeginChunk(head_));
    if (!request_.echo) return absl::OkStatus();
    const bool whole = !request_.best.has_value() && !prompt_->ids.has_value();
    std::vector<std::string> pieces;
    if (!whole) {
      MP_ASSIGN_OR_RETURN(pieces, Pieces(ids));
    }
    if (request_.best.has_value()) MP_RETURN_IF_ERROR(TellPrompt(ids, scores, pieces));
    Say(prompt_->ids.has_value() ? absl::StrJoin(pieces, "") : prompt_->text);
    return absl::OkStatus();
  }
  // Returns whether to go on.
  bool Take(const TokenScore& token, absl::string_view bytes) {
    if (reply_.Left()) return false;
    ++tokens_;
    ended_ = std::binary_search(model_.facts().ends.begin(), model_.facts().ends.end(),
                                token.token.token);
    const std::string text = ended_ ? "" : utf8_.Feed(bytes);
    // What ends a chat's message is no part of it.
    const bool told = request_.best.has_value() && !(ended_ && request_.chat);
    if (told) broken_ = Tell({token}, {text});
    if (!broken_.ok()) return false;
    if (!ended_) Say(stop_.Feed(text));
    const bool more = !ended_ && !stop_.found() && tokens_ < most_;
    if (!more && request_.stream) Finish();
    return more;
  }
  // An error that ended it.
  const absl::Status& broken() const { return broken_; }
  int64_t tokens() const { return tokens_; }
  // Of a stream the rest is written, unless the last token has done that; else all is returned.
  WholeChoice End() {
    if (finish_ == nullptr) Finish();
    return {std::move(whole_), finish_, std::move(told_)};
  }

 private:
  void Finish() {
    if (!stop_.found()) Say(stop_.Feed(utf8_.Rest()));
    Say(stop_.Rest());
    finish_ = ended_ || stop_.found() ? "stop" : "length";
    if (request_.stream) reply_.Write(EndChunk(head_, finish_, Told()));
  }
  // What each token of the prompt adds to its text, in whole characters.
  absl::StatusOr<std::vector<std::string>> Pieces(const std::vector<int32_t>& prompt) {
    MP_ASSIGN_OR_RETURN(std::vector<std::string> pieces, model_.Decode(prompt));
    Utf8Pieces utf8;
    for (std::string& piece : pieces) piece = utf8.Feed(piece);
    if (!pieces.empty()) pieces.back() += utf8.Rest();
    return pieces;
  }
  absl::Status TellPrompt(const std::vector<int32_t>& ids, const std::vector<TokenScore>& scores,
                          const std::vector<std::string>& pieces) {
    std::vector<TokenScore> all = {{.token = {.token = ids[0]}, .best = {}}};
    all.insert(all.end(), scores.begin(), scores.end());
    MP_RETURN_IF_ERROR(Tell(all, pieces));
    told_->tokens[0].scored = false;
    return absl::OkStatus();
  }
  // Of tokens and what they add to the text, with the next part of the answer.
  absl::Status Tell(const std::vector<TokenScore>& scores, const std::vector<std::string>& pieces) {
    MP_ASSIGN_OR_RETURN(std::vector<AnswerToken> tokens, NameTokens(scores, model_));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i].characters = Characters(pieces[i]);
    std::move(tokens.begin(), tokens.end(), std::back_inserter(told_->tokens));
    return absl::OkStatus();
  }
  // What is to be told of tokens, once.
  std::optional<AnswerTokens> Told() {
    if (!told_.has_value()) return std::nullopt;
    AnswerTokens told = *std::move(told_);
    told_.emplace().offset = told.offset;
    for (const AnswerToken& token : told.tokens) told_->offset += token.characters;
    return told;
  }
  void Say(absl::string_view text) {
    if (text.empty()) return;
    if (request_.stream) return reply_.Write(TextChunk(head_, text, Told()));
    absl::StrAppend(&whole_, text);
  }

  const TextRequest& request_;
  const AnswerHead head_;
  const RequestPrompt* const prompt_;
  const int64_t most_;
  TextModel& model_;
  TextReply& reply_;
  Utf8Pieces utf8_;
  StopText stop_;
  std::string whole_;
  int64_t tokens_ = 0;
  std::optional<AnswerTokens> told_;  // where the request asks for log-probabilities
  absl::Status broken_;
  bool ended_ = false;            // by a token that ends answers
  const char* finish_ = nullptr;  // why, once it has
};

// All answers to a request: to each prompt as many as it asks for, one after the other.
class AllAnswers {
 public:
  AllAnswers(const TextRequest& request, const AnswerContext& context,
             std::vector<TextLine> prompts, TextModel& model, TextReply& reply)
      : request_(request),
        head_({.chat = request.chat,
               .id = context.id,
               .created = context.created,
               .model = context.model,
               .include_usage = request.include_usage}),
        prompts_(std::move(prompts)),
        model_(model),
        reply_(reply) {
    for (size_t i = 0; i < prompts_.size() * static_cast<size_t>(request_.answers); ++i) {
      AnswerHead head = head_;
      head.choice = static_cast<int64_t>(i);
      answers_.emplace_back(request_, std::move(head),
                            request_.chat ? nullptr : &request_.prompts[PromptOf(i)],
                            prompts_[PromptOf(i)].tokens, model_, reply_);
    }
    begun_.resize(answers_.size(), false);
  }

  absl::Status Make() {
    const auto left = [this] { return reply_.Left(); };
    scores_.resize(prompts_.size());
    if (request_.echo && request_.best.has_value()) {
      MP_RETURN_IF_ERROR(model_.Score(prompts_, left, [&](size_t prompt, const TokenScore& score) {
        scores_[prompt].push_back(score);
        return !reply_.Left();
      }));
      if (reply_.Left()) return absl::OkStatus();
    }
    if (request_.tokens != 0) {
      MP_RETURN_IF_ERROR(model_.Generate(
          Texts(), !request_.chat, [&] { return !broken_.ok() || left(); },
          [&](size_t answer, const TokenScore& token, absl::string_view bytes) {
            return Take(answer, token, bytes);
          }));
    }
    MP_RETURN_IF_ERROR(broken_);
    for (size_t i = 0; i < answers_.size() && !reply_.Left(); ++i) MP_RETURN_IF_ERROR(Begin(i));
    return absl::OkStatus();
  }
  void End() {
    if (reply_.Left()) return reply_.End();
    TokenUsage usage;
    std::vector<WholeChoice> choices;
    for (Answering& answer : answers_) {
      choices.push_back(answer.End());
      usage.answer += answer.tokens();
    }
    for (const TextLine& prompt : prompts_) {
      usage.prompt += static_cast<int64_t>(prompt.prompt.size());
    }
    if (!request_.stream) return reply_.Whole(WholeAnswer(head_, choices, usage));
    if (head_.include_usage) reply_.Write(UsageChunk(head_, usage));
    reply_.Write(kDoneChunk);
    reply_.End();
  }
  void Break(const absl::Status& status) {
    if (!request_.stream) return reply_.Fail(status);
    reply_.Write(ErrorChunk(status));
    reply_.End();
  }

 private:
  // Of a text that waits for others the prompt is not written yet: a stream holds little.
  absl::Status Begin(size_t answer) {
    if (begun_[answer]) return absl::OkStatus();
    begun_[answer] = true;
    const size_t prompt = PromptOf(answer);
    return answers_[answer].Begin(prompts_[prompt].prompt, scores_[prompt]);
  }
  bool Take(size_t answer, const TokenScore& token, absl::string_view bytes) {
    if (!broken_.ok()) return false;
    broken_ = Begin(answer);
    const bool more = broken_.ok() && answers_[answer].Take(token, bytes);
    broken_.Update(answers_[answer].broken());
    return more && broken_.ok();
  }
  size_t PromptOf(size_t answer) const { return answer / static_cast<size_t>(request_.answers); }
  std::vector<TextLine> Texts() const {
    std::vector<TextLine> texts;
    for (size_t i = 0; i < answers_.size(); ++i) {
      texts.push_back(prompts_[PromptOf(i)]);
      texts.back().seed +=
          request_.seed.has_value() ? i % static_cast<size_t>(request_.answers) : i;
    }
    return texts;
  }

  const TextRequest& request_;
  const AnswerHead head_;
  const std::vector<TextLine> prompts_;
  TextModel& model_;
  TextReply& reply_;
  std::deque<Answering> answers_;
  std::vector<bool> begun_;                      // of the answers
  std::vector<std::vector<TokenScore>> scores_;  // of the prompts
  absl::Status broken_;                          // the first answer's that an error ended
};

}  // namespace

absl::Status AnswerRequest(const TextRequest& request, const AnswerContext& context,
                           TextModel& model, TextReply& reply) {
  auto prompts = TextsOf(request, request.seed.value_or(context.seed), model);
  if (!prompts.ok()) {
    reply.Fail(prompts.status());
    return absl::IsUnavailable(prompts.status()) ? prompts.status() : absl::OkStatus();
  }
  AllAnswers answers(request, context, *std::move(prompts), model, reply);
  const absl::Status made = answers.Make();
  if (made.ok()) {
    answers.End();
  } else {
    answers.Break(made);
  }
  return absl::IsUnavailable(made) ? made : absl::OkStatus();
}

}  // namespace milepost::client
