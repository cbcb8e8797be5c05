#include "client/serve/answer_request.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
                  .prompt = *std::move(ids)};
}

// An answer under way.
class Answering {
 public:
  Answering(const TextRequest& request, AnswerHead head, TextReply& reply)
      : request_(request), head_(std::move(head)), reply_(reply), stop_(request.stop) {}

  void Begin() {
    if (request_.stream && request_.chat) reply_.Write(BeginChunk(head_));
    if (request_.echo) Say(request_.prompt);
  }
  // Returns whether to go on.
  bool Take(const TextModelFacts& facts, int32_t token, absl::string_view bytes) {
    if (reply_.Left()) return false;
    ++usage_.answer;
    ended_ = std::binary_search(facts.ends.begin(), facts.ends.end(), token);
    if (!ended_) Say(stop_.Feed(utf8_.Feed(bytes)));
    return !ended_ && !stop_.found();
  }
  void End(int64_t prompt_tokens) {
    if (reply_.Left()) return reply_.End();
    if (!stop_.found()) Say(stop_.Feed(utf8_.Rest()));
    Say(stop_.Rest());
    usage_.prompt = prompt_tokens;
    const char* finish = ended_ || stop_.found() ? "stop" : "length";
    if (!request_.stream) return reply_.Whole(WholeAnswer(head_, whole_, finish, usage_));
    reply_.Write(EndChunk(head_, finish));
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
  void Say(absl::string_view text) {
    if (text.empty()) return;
    if (request_.stream) return reply_.Write(TextChunk(head_, text));
    absl::StrAppend(&whole_, text);
  }

  const TextRequest& request_;
  const AnswerHead head_;
  TextReply& reply_;
  Utf8Pieces utf8_;
  StopText stop_;
  std::string whole_;
  TokenUsage usage_;
  bool ended_ = false;  // by a token that ends answers
};

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
                      reply);
  answering.Begin();
  const absl::Status made =
      model.Generate(*text, !request.chat, [&](int32_t token, absl::string_view bytes) {
        return answering.Take(model.facts(), token, bytes);
      });
  if (made.ok()) {
    answering.End(static_cast<int64_t>(text->prompt.size()));
  } else {
    answering.Break(made);
  }
  return absl::IsUnavailable(made) ? made : absl::OkStatus();
}

}  // namespace milepost::client
