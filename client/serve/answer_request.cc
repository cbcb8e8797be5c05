#include "client/serve/answer_request.h"

#include <algorithm>
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

absl::StatusOr<std::vector<int32_t>> IdsOf(const TextRequest& request, TextModel& model) {
  if (request.chat) return model.EncodeChat(request.messages, request.template_arguments);
  if (!request.prompt_ids.has_value()) return model.Encode(request.prompt);
  for (const int32_t id : *request.prompt_ids) {
    if (id < model.facts().vocabulary) continue;
    return BadParameter("prompt", absl::StrCat("prompt: ", id,
                                               " is none of the model's token ids, "
                                               "0 to ",
                                               model.facts().vocabulary - 1));
  }
  return *request.prompt_ids;
}

// What the model is asked for.
absl::StatusOr<TextLine> TextOf(const TextRequest& request, const AnswerContext& context,
                                TextModel& model) {
  const char* input = request.chat ? "messages" : "prompt";
  auto ids = IdsOf(request, model);
  if (absl::IsInvalidArgument(ids.status())) return BadParameter(input, ids.status().message());
  MP_RETURN_IF_ERROR(ids.status());
  const int64_t window = model.facts().window;
  const auto length = static_cast<int64_t>(ids->size());
  const int64_t tokens = request.tokens.value_or(std::max<int64_t>(1, window - length));
  if (length + tokens > window) {
    return BadParameter(length + 1 > window ? input : "max_tokens",
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
                  .seed = request.seed.value_or(context.seed),
                  .best = request.best,
                  .prompt = *std::move(ids)};
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

// An answer under way.
class Answering {
 public:
  Answering(const TextRequest& request, AnswerHead head, TextModel& model, TextReply& reply)
      : request_(request),
        head_(std::move(head)),
        model_(model),
        reply_(reply),
        stop_(request.stop) {
    if (request_.best.has_value()) told_.emplace();
  }

  // What comes before the answer.
  absl::Status Begin(const std::vector<int32_t>& prompt) {
    if (request_.stream && request_.chat) reply_.Write(BeginChunk(head_));
    if (!request_.echo) return absl::OkStatus();
    const bool whole = !request_.best.has_value() && !request_.prompt_ids.has_value();
    std::vector<std::string> pieces;
    if (!whole) {
      MP_ASSIGN_OR_RETURN(pieces, Pieces(prompt));
    }
    if (request_.best.has_value()) MP_RETURN_IF_ERROR(ScorePrompt(prompt, pieces));
    Say(request_.prompt_ids.has_value() ? absl::StrJoin(pieces, "") : request_.prompt);
    return absl::OkStatus();
  }
  bool left() const { return reply_.Left(); }
  // Returns whether to go on.
  bool Take(const TokenScore& token, absl::string_view bytes) {
    if (reply_.Left()) return false;
    ++usage_.answer;
    ended_ = std::binary_search(model_.facts().ends.begin(), model_.facts().ends.end(),
                                token.token.token);
    const std::string text = ended_ ? "" : utf8_.Feed(bytes);
    // What ends a chat's message is no part of it.
    const bool told = request_.best.has_value() && !(ended_ && request_.chat);
    if (told) broken_ = Tell({token}, {text});
    if (!broken_.ok()) return false;
    if (!ended_) Say(stop_.Feed(text));
    return !ended_ && !stop_.found();
  }
  // An error that ended it.
  const absl::Status& broken() const { return broken_; }
  void End(int64_t prompt_tokens) {
    if (reply_.Left()) return reply_.End();
    if (!stop_.found()) Say(stop_.Feed(utf8_.Rest()));
    Say(stop_.Rest());
    usage_.prompt = prompt_tokens;
    const char* finish = ended_ || stop_.found() ? "stop" : "length";
    if (!request_.stream) return reply_.Whole(WholeAnswer(head_, whole_, finish, usage_, told_));
    reply_.Write(EndChunk(head_, finish, Told()));
    if (head_.include_usage) reply_.Write(UsageChunk(head_, usage_));
    reply_.Write(kDoneChunk);
    reply_.End();
  }
  void Break(const absl::Status& status) {
    if (!request_.stream) return reply_.Fail(status);
    reply_.Write(ErrorChunk(status));
    reply_.End();
  }

 private:
  // What each token of the prompt adds to its text, in whole characters.
  absl::StatusOr<std::vector<std::string>> Pieces(const std::vector<int32_t>& prompt) {
    MP_ASSIGN_OR_RETURN(std::vector<std::string> pieces, model_.Decode(prompt));
    Utf8Pieces utf8;
    for (std::string& piece : pieces) piece = utf8.Feed(piece);
    if (!pieces.empty()) pieces.back() += utf8.Rest();
    return pieces;
  }
  absl::Status ScorePrompt(const std::vector<int32_t>& prompt,
                           const std::vector<std::string>& pieces) {
    std::vector<TokenScore> scores = {{.token = {.token = prompt[0]}, .best = {}}};
    MP_RETURN_IF_ERROR(model_.Score(prompt, *request_.best, [&](const TokenScore& score) {
      scores.push_back(score);
      return !reply_.Left();
    }));
    if (reply_.Left()) return absl::OkStatus();
    MP_RETURN_IF_ERROR(Tell(scores, pieces));
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
  TextModel& model_;
  TextReply& reply_;
  Utf8Pieces utf8_;
  StopText stop_;
  std::string whole_;
  TokenUsage usage_;
  std::optional<AnswerTokens> told_;  // where the request asks for log-probabilities
  absl::Status broken_;
  bool ended_ = false;  // by a token that ends answers
};

// Of an answer that has begun.
absl::Status MakeAnswer(const TextLine& text, bool whole_text, TextModel& model,
                        Answering& answering) {
  MP_RETURN_IF_ERROR(answering.Begin(text.prompt));
  if (text.tokens == 0 || answering.left()) return absl::OkStatus();
  MP_RETURN_IF_ERROR(
      model.Generate(text, whole_text, [&](const TokenScore& token, absl::string_view bytes) {
        return answering.Take(token, bytes);
      }));
  return answering.broken();
}

}  // namespace

absl::Status AnswerRequest(const TextRequest& request, const AnswerContext& context,
                           TextModel& model, TextReply& reply) {
  const auto text = TextOf(request, context, model);
  if (!text.ok()) {
    reply.Fail(text.status());
    return absl::IsUnavailable(text.status()) ? text.status() : absl::OkStatus();
  }
  Answering answering(request,
                      {.chat = request.chat,
                       .id = context.id,
                       .created = context.created,
                       .model = context.model,
                       .include_usage = request.include_usage},
                      model, reply);
  const absl::Status made = MakeAnswer(*text, !request.chat, model, answering);
  if (made.ok()) {
    answering.End(static_cast<int64_t>(text->prompt.size()));
  } else {
    answering.Break(made);
  }
  return absl::IsUnavailable(made) ? made : absl::OkStatus();
}

}  // namespace milepost::client
