#include "client/serve/api_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/serve/api_error.h"
#include "client/serve/api_refusals.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

using nlohmann::json;

constexpr int kMostDepth = 32;
constexpr int64_t kMostTokens = 1'000'000;
constexpr size_t kMostMessages = 10'000;
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default

// A parser's memory grows with what is nested, far beyond the text's size.
bool TooDeep(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMostDepth) return true;
  }
  return false;
}

absl::StatusOr<json> ParseObject(absl::string_view body) {
  if (TooDeep(body)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body is nested more than ", kMostDepth, " deep"));
  }
  json object = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return absl::InvalidArgumentError("the body is not valid JSON");
  if (!object.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
  return object;
}

// nullptr: it is left out, or null.
const json* Given(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::Status ReadFlag(const json& object, const char* name, bool* flag) {
  const json* given = Given(object, name);
  if (given == nullptr) return absl::OkStatus();
  if (!given->is_boolean()) return BadParameter(name, absl::StrCat(name, " must be true or false"));
  *flag = given->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadNumber(const json& object, const char* name, double least, double most,
                        double* number) {
  const json* given = Given(object, name);
  if (given == nullptr) return absl::OkStatus();
  const double value = given->is_number() ? given->get<double>() : std::nan("");
  if (!(value >= least && value <= most)) {
    return BadParameter(name, absl::StrCat(name, " must be a number from ", least, " to ", most));
  }
  *number = value;
  return absl::OkStatus();
}

// False: `value` is no integer of the range.
bool IsWithin(const json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

absl::Status ReadTokens(const json& object, const char* name, int64_t least,
                        std::optional<int64_t>* tokens) {
  const json* given = Given(object, name);
  if (given == nullptr) return absl::OkStatus();
  if (!IsWithin(*given, least, kMostTokens)) {
    return BadParameter(
        name, absl::StrCat(name, " must be an integer from ", least, " to ", kMostTokens));
  }
  *tokens = given->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadTopK(const json& object, int64_t* top_k) {
  const json* given = Given(object, "top_k");
  if (given == nullptr) return absl::OkStatus();
  if (!IsWithin(*given, -1, 1 << 24)) {
    return BadParameter("top_k", "top_k must be an integer of at least 0; 0 and -1: all tokens");
  }
  *top_k = std::max<int64_t>(0, given->get<int64_t>());
  return absl::OkStatus();
}

absl::Status ReadSeed(const json& object, std::optional<uint64_t>* seed) {
  const json* given = Given(object, "seed");
  if (given == nullptr) return absl::OkStatus();
  if (!given->is_number_integer()) return BadParameter("seed", "seed must be an integer");
  *seed = given->is_number_unsigned() ? given->get<uint64_t>()
                                      : static_cast<uint64_t>(given->get<int64_t>());
  return absl::OkStatus();
}

// How many of the likeliest tokens to tell of.
absl::Status ReadBest(const json& object, const char* name, std::optional<int64_t>* best) {
  const json* given = Given(object, name);
  if (given == nullptr || *given == json(false)) return absl::OkStatus();
  if (!IsWithin(*given, 0, kMostBest)) {
    return BadParameter(name, absl::StrCat(name, " must be an integer from 0 to ", kMostBest));
  }
  *best = given->get<int64_t>();
  return absl::OkStatus();
}

// Chats say by one parameter whether, and by another how many.
absl::Status ReadChatBest(const json& object, std::optional<int64_t>* best) {
  bool wanted = false;
  MP_RETURN_IF_ERROR(ReadFlag(object, "logprobs", &wanted));
  std::optional<int64_t> top;
  MP_RETURN_IF_ERROR(ReadBest(object, "top_logprobs", &top));
  if (wanted) *best = top.value_or(0);
  if (wanted || top.value_or(0) == 0) return absl::OkStatus();
  return BadParameter("top_logprobs", "top_logprobs needs `logprobs: true`");
}

absl::Status ReadAnswers(const json& object, int64_t* answers) {
  const json* given = Given(object, "n");
  if (given == nullptr) return absl::OkStatus();
  if (!IsWithin(*given, 1, kMostAnswers)) {
    return BadParameter("n", absl::StrCat("n must be an integer from 1 to ", kMostAnswers));
  }
  *answers = given->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadStop(const json& object, std::vector<std::string>* stop) {
  const json* given = Given(object, "stop");
  if (given == nullptr) return absl::OkStatus();
  const json list = given->is_array() ? *given : json::array({*given});
  if (list.size() > kMostStops) {
    return BadParameter("stop", absl::StrCat("stop has at most ", kMostStops, " texts"));
  }
  for (const json& one : list) {
    const auto* text = one.get_ptr<const std::string*>();
    if (text == nullptr || text->empty() || text->size() > kMostStopBytes) {
      return BadParameter("stop", absl::StrCat("stop must be a text, or a list of texts, of 1 to ",
                                               kMostStopBytes, " bytes"));
    }
    stop->push_back(*text);
  }
  return absl::OkStatus();
}

absl::Status ReadStream(const json& object, TextRequest* request) {
  MP_RETURN_IF_ERROR(ReadFlag(object, "stream", &request->stream));
  const json* options = Given(object, "stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) {
    return BadParameter("stream_options", "stream_options must be an object");
  }
  if (!request->stream) {
    return BadParameter("stream_options", "stream_options needs `stream: true`");
  }
  const json* usage = Given(*options, "include_usage");
  if (usage == nullptr) return absl::OkStatus();
  if (!usage->is_boolean()) {
    return BadParameter("stream_options.include_usage", "include_usage must be true or false");
  }
  request->include_usage = usage->get<bool>();
  return absl::OkStatus();
}

// What both kinds of request have.
absl::Status ReadCommon(const json& object, TextRequest* request) {
  MP_RETURN_IF_ERROR(CheckRefusals(object));
  if (const json* model = Given(object, "model"); model != nullptr) {
    if (!model->is_string()) return BadParameter("model", "model must be a text");
    request->model = model->get<std::string>();
  }
  // The likelihood of a text alone needs none.
  const int64_t least = request->echo && request->best.has_value() ? 0 : 1;
  MP_RETURN_IF_ERROR(ReadTokens(object, "max_tokens", least, &request->tokens));
  MP_RETURN_IF_ERROR(ReadTokens(object, "max_completion_tokens", least, &request->tokens));
  MP_RETURN_IF_ERROR(ReadNumber(object, "temperature", 0, 100, &request->temperature));
  MP_RETURN_IF_ERROR(ReadNumber(object, "top_p", 0, 1, &request->top_p));
  if (request->top_p == 0) return BadParameter("top_p", "top_p must be above 0, and at most 1");
  MP_RETURN_IF_ERROR(ReadTopK(object, &request->top_k));
  MP_RETURN_IF_ERROR(ReadSeed(object, &request->seed));
  MP_RETURN_IF_ERROR(ReadAnswers(object, &request->answers));
  MP_RETURN_IF_ERROR(ReadStop(object, &request->stop));
  return ReadStream(object, request);
}

// A text, or a list of ids. `name`: as errors call it.
absl::StatusOr<RequestPrompt> PromptOf(const json& prompt, const std::string& name) {
  if (const auto* text = prompt.get_ptr<const std::string*>(); text != nullptr) return {{*text}};
  if (!prompt.is_array() || prompt.empty()) {
    return BadParameter(name, absl::StrCat(name, " must be a text, or a list of token ids"));
  }
  std::vector<int32_t> ids;
  for (const json& id : prompt) {
    if (!IsWithin(id, 0, std::numeric_limits<int32_t>::max())) {
      return BadParameter(name, absl::StrCat(name, " has an element that is no token id"));
    }
    ids.push_back(id.get<int32_t>());
  }
  return RequestPrompt{.text = "", .ids = std::move(ids)};
}

absl::Status ReadPrompts(const json& object, TextRequest* request) {
  const json* prompt = Given(object, "prompt");
  if (prompt == nullptr) return BadParameter("prompt", "prompt is missing");
  const bool several = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
  if (!several) {
    MP_ASSIGN_OR_RETURN(request->prompts.emplace_back(), PromptOf(*prompt, "prompt"));
  } else if (static_cast<int64_t>(prompt->size()) > kMostAnswers / request->answers) {
    return BadParameter("prompt", absl::StrCat("prompts times n may be at most ", kMostAnswers));
  }
  for (size_t i = 0; several && i < prompt->size(); ++i) {
    MP_ASSIGN_OR_RETURN(request->prompts.emplace_back(),
                        PromptOf((*prompt)[i], absl::StrCat("prompt[", i, "]")));
  }
  return absl::OkStatus();
}

// A message's content as one text.
absl::StatusOr<std::string> ContentOf(const json& message, const std::string& place) {
  const json* content = Given(message, "content");
  const std::string where = place + ".content";
  if (content == nullptr) return BadParameter(where, absl::StrCat(where, " is missing"));
  if (const auto* text = content->get_ptr<const std::string*>(); text != nullptr) return *text;
  if (!content->is_array() || content->empty()) {
    return BadParameter(where, absl::StrCat(where, " must be a text, or a list of parts"));
  }
  std::string joined;
  for (size_t i = 0; i < content->size(); ++i) {
    const json& part = (*content)[i];
    const std::string its = absl::StrCat(where, "[", i, "]");
    const json* type = part.is_object() ? Given(part, "type") : nullptr;
    if (type == nullptr || *type != "text") {
      return BadParameter(its + ".type",
                          absl::StrCat(its,
                                       ": this server reads text alone: no images, audio or "
                                       "files"),
                          "unsupported_parameter");
    }
    const json* text = Given(part, "text");
    if (text == nullptr || !text->is_string()) {
      return BadParameter(its + ".text", absl::StrCat(its, ".text must be a text"));
    }
    absl::StrAppend(&joined, i > 0 ? "\n" : "", text->get_ref<const std::string&>());
  }
  return joined;
}

absl::StatusOr<json> MessageOf(const json& message, const std::string& place) {
  if (!message.is_object()) return BadParameter(place, absl::StrCat(place, " must be an object"));
  const json* role = Given(message, "role");
  const std::string name = role != nullptr && role->is_string() ? role->get<std::string>() : "";
  if (name != "system" && name != "developer" && name != "user" && name != "assistant") {
    return BadParameter(place + ".role",
                        absl::StrCat(place,
                                     ".role must be system, developer, user or assistant: this "
                                     "server calls no tools"));
  }
  for (const char* tool : {"tool_calls", "function_call", "audio"}) {
    const json* given = Given(message, tool);
    if (given == nullptr || given->empty()) continue;
    return BadParameter(absl::StrCat(place, ".", tool),
                        absl::StrCat(place, ".", tool, " is not supported"),
                        "unsupported_parameter");
  }
  MP_ASSIGN_OR_RETURN(const std::string content, ContentOf(message, place));
  // The API's newer name, which templates do not know.
  return json({{"role", name == "developer" ? "system" : name}, {"content", content}});
}

absl::Status ReadMessages(const json& object, TextRequest* request) {
  const json* messages = Given(object, "messages");
  if (messages == nullptr) return BadParameter("messages", "messages is missing");
  if (!messages->is_array() || messages->empty() || messages->size() > kMostMessages) {
    return BadParameter("messages",
                        absl::StrCat("messages must be a list of 1 to ", kMostMessages));
  }
  json read = json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    MP_ASSIGN_OR_RETURN(json message, MessageOf((*messages)[i], absl::StrCat("messages[", i, "]")));
    read.push_back(std::move(message));
  }
  request->messages = read.dump();
  request->template_arguments = "{}";
  const json* arguments = Given(object, "chat_template_kwargs");
  if (arguments == nullptr) return absl::OkStatus();
  if (!arguments->is_object()) {
    return BadParameter("chat_template_kwargs", "chat_template_kwargs must be an object");
  }
  request->template_arguments = arguments->dump();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TextRequest> ParseCompletionRequest(absl::string_view body) {
  MP_ASSIGN_OR_RETURN(const json object, ParseObject(body));
  TextRequest request;
  MP_RETURN_IF_ERROR(ReadFlag(object, "echo", &request.echo));
  MP_RETURN_IF_ERROR(ReadBest(object, "logprobs", &request.best));
  MP_RETURN_IF_ERROR(ReadCommon(object, &request));
  MP_RETURN_IF_ERROR(ReadPrompts(object, &request));
  std::optional<int64_t> top;
  MP_RETURN_IF_ERROR(ReadBest(object, "top_logprobs", &top));
  if (top.value_or(0) > 0) {
    return BadParameter("top_logprobs",
                        "top_logprobs is of chats: of completions `logprobs` is the number",
                        "unsupported_parameter");
  }
  if (!request.tokens.has_value()) request.tokens = kCompletionTokens;
  return request;
}

absl::StatusOr<TextRequest> ParseChatRequest(absl::string_view body) {
  MP_ASSIGN_OR_RETURN(const json object, ParseObject(body));
  TextRequest request;
  request.chat = true;
  MP_RETURN_IF_ERROR(ReadCommon(object, &request));
  MP_RETURN_IF_ERROR(ReadChatBest(object, &request.best));
  MP_RETURN_IF_ERROR(ReadMessages(object, &request));
  bool echo = false;
  MP_RETURN_IF_ERROR(ReadFlag(object, "echo", &echo));
  if (echo) return BadParameter("echo", "echo is of completions alone", "unsupported_parameter");
  return request;
}

}  // namespace milepost::client
