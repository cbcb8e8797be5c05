#include "client/serve/api_answer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/serve/api_error.h"

namespace milepost::client {
namespace {

using AnswerFields = nlohmann::ordered_json;

std::string DumpAnswer(const AnswerFields& json) {
  return json.dump(-1, ' ', false, AnswerFields::error_handler_t::replace);
}

AnswerFields UsageFields(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.answer},
          {"total_tokens", usage.prompt + usage.answer}};
}

AnswerFields HeadFields(const AnswerHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

// JSON has no infinities: OpenAI's API has this number in their place.
AnswerFields LogProb(double value) {
  return std::isinf(value) ? AnswerFields(-9999.0) : AnswerFields(value);
}

AnswerFields ChatChoice(const AnswerChoice& choice) {
  return {{"token", choice.text}, {"logprob", LogProb(choice.log_prob)}, {"bytes", nullptr}};
}

AnswerFields ChatLogprobs(const std::vector<AnswerToken>& tokens) {
  AnswerFields content = AnswerFields::array();
  for (const AnswerToken& token : tokens) {
    AnswerFields fields = ChatChoice(token.token);
    fields["top_logprobs"] = AnswerFields::array();
    for (const AnswerChoice& choice : token.best) {
      fields["top_logprobs"].push_back(ChatChoice(choice));
    }
    content.push_back(std::move(fields));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The likeliest by their texts, and the token itself.
AnswerFields TopOf(const AnswerToken& token) {
  AnswerFields top = AnswerFields::object();
  for (const AnswerChoice& choice : token.best) {
    if (!top.contains(choice.text)) top[choice.text] = LogProb(choice.log_prob);
  }
  if (!top.contains(token.token.text)) top[token.token.text] = LogProb(token.token.log_prob);
  return top;
}

AnswerFields CompletionLogprobs(const AnswerTokens& told) {
  AnswerFields texts = AnswerFields::array(), values = texts, tops = texts, offsets = texts;
  int64_t offset = told.offset;
  for (const AnswerToken& token : told.tokens) {
    texts.push_back(token.token.text);
    values.push_back(token.scored ? LogProb(token.token.log_prob) : AnswerFields());
    tops.push_back(token.scored ? TopOf(token) : AnswerFields());
    offsets.push_back(offset);
    offset += token.characters;
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

AnswerFields LogprobsFields(const AnswerHead& head, const std::optional<AnswerTokens>& tokens) {
  if (!tokens.has_value()) return nullptr;
  return head.chat ? ChatLogprobs(tokens->tokens) : CompletionLogprobs(*tokens);
}

// `part`: a chat's delta, or a completion's text.
std::string ChunkOf(const AnswerHead& head, AnswerFields part, AnswerFields finish,
                    const std::optional<AnswerTokens>& tokens = {}) {
  AnswerFields chunk = HeadFields(head, head.chat ? "chat.completion.chunk" : "text_completion");
  AnswerFields choice = {{"index", head.choice}};
  choice[head.chat ? "delta" : "text"] = std::move(part);
  choice["logprobs"] = LogprobsFields(head, tokens);
  choice["finish_reason"] = std::move(finish);
  chunk["choices"] = AnswerFields::array({std::move(choice)});
  if (head.include_usage) chunk["usage"] = nullptr;
  return absl::StrCat("data: ", DumpAnswer(chunk), "\n\n");
}

AnswerFields ModelFields(const std::string& model, int64_t created) {
  return {{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "milepost"}};
}

}  // namespace

int64_t Characters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string WholeAnswer(const AnswerHead& head, const std::vector<WholeChoice>& choices,
                        const TokenUsage& usage) {
  AnswerFields answer = HeadFields(head, head.chat ? "chat.completion" : "text_completion");
  answer["choices"] = AnswerFields::array();
  for (const WholeChoice& made : choices) {
    AnswerFields choice = {{"index", answer["choices"].size()}};
    if (head.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", made.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = made.text;
    }
    choice["logprobs"] = LogprobsFields(head, made.tokens);
    choice["finish_reason"] = made.finish;
    answer["choices"].push_back(std::move(choice));
  }
  answer["usage"] = UsageFields(usage);
  return DumpAnswer(answer);
}

std::string BeginChunk(const AnswerHead& head) {
  if (!head.chat) return ChunkOf(head, "", nullptr);
  return ChunkOf(head, {{"role", "assistant"}, {"content", ""}}, nullptr);
}

std::string TextChunk(const AnswerHead& head, absl::string_view text,
                      const std::optional<AnswerTokens>& tokens) {
  if (!head.chat) return ChunkOf(head, std::string(text), nullptr, tokens);
  return ChunkOf(head, {{"content", std::string(text)}}, nullptr, tokens);
}

std::string EndChunk(const AnswerHead& head, absl::string_view finish,
                     const std::optional<AnswerTokens>& tokens) {
  return ChunkOf(head, head.chat ? AnswerFields::object() : AnswerFields(""), std::string(finish),
                 tokens);
}

std::string UsageChunk(const AnswerHead& head, const TokenUsage& usage) {
  AnswerFields chunk = HeadFields(head, head.chat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = AnswerFields::array();
  chunk["usage"] = UsageFields(usage);
  return absl::StrCat("data: ", DumpAnswer(chunk), "\n\n");
}

std::string ErrorChunk(const absl::Status& status) {
  return absl::StrCat("data: ", ErrorJson(status), "\n\n");
}

std::string ModelJson(const std::string& model, int64_t created) {
  return DumpAnswer(ModelFields(model, created));
}

std::string ModelsJson(const std::string& model, int64_t created) {
  return DumpAnswer(
      {{"object", "list"}, {"data", AnswerFields::array({ModelFields(model, created)})}});
}

}  // namespace milepost::client
