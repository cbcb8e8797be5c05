#include "client/serve/api_answer.h"

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

// `part`: a chat's delta, or a completion's text.
std::string ChunkOf(const AnswerHead& head, AnswerFields part, AnswerFields finish) {
  AnswerFields chunk = HeadFields(head, head.chat ? "chat.completion.chunk" : "text_completion");
  AnswerFields choice = {{"index", 0}};
  choice[head.chat ? "delta" : "text"] = std::move(part);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = std::move(finish);
  chunk["choices"] = AnswerFields::array({std::move(choice)});
  if (head.include_usage) chunk["usage"] = nullptr;
  return absl::StrCat("data: ", DumpAnswer(chunk), "\n\n");
}

AnswerFields ModelFields(const std::string& model, int64_t created) {
  return {{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "milepost"}};
}

}  // namespace

std::string WholeAnswer(const AnswerHead& head, absl::string_view text, absl::string_view finish,
                        const TokenUsage& usage) {
  AnswerFields answer = HeadFields(head, head.chat ? "chat.completion" : "text_completion");
  AnswerFields choice = {{"index", 0}};
  if (head.chat) {
    choice["message"] = {
        {"role", "assistant"}, {"content", std::string(text)}, {"refusal", nullptr}};
  } else {
    choice["text"] = std::string(text);
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = std::string(finish);
  answer["choices"] = AnswerFields::array({std::move(choice)});
  answer["usage"] = UsageFields(usage);
  return DumpAnswer(answer);
}

std::string BeginChunk(const AnswerHead& head) {
  if (!head.chat) return ChunkOf(head, "", nullptr);
  return ChunkOf(head, {{"role", "assistant"}, {"content", ""}}, nullptr);
}

std::string TextChunk(const AnswerHead& head, absl::string_view text) {
  if (!head.chat) return ChunkOf(head, std::string(text), nullptr);
  return ChunkOf(head, {{"content", std::string(text)}}, nullptr);
}

std::string EndChunk(const AnswerHead& head, absl::string_view finish) {
  return ChunkOf(head, head.chat ? AnswerFields::object() : AnswerFields(""), std::string(finish));
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
