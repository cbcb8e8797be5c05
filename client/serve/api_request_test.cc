#include "client/serve/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/serve/api_error.h"

namespace milepost::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kHello[] = R"("messages": [{"role": "user", "content": "hello"}])";

// The field of the error that clients see.
std::string ErrorField(const absl::Status& status, const char* name) {
  const auto error = nlohmann::json::parse(ErrorJson(status)).at("error").at(name);
  return error.is_string() ? error.get<std::string>() : "";
}
std::string ChatParam(const std::string& fields) {
  const auto request = ParseChatRequest(absl::StrCat("{", kHello, ", ", fields, "}"));
  return request.ok() ? "taken" : ErrorField(request.status(), "param");
}
std::string CompletionParam(const std::string& fields) {
  const auto request = ParseCompletionRequest(absl::StrCat(R"({"prompt": "a", )", fields, "}"));
  return request.ok() ? "taken" : ErrorField(request.status(), "param");
}

TEST(ApiRequest, HasTheApisDefaults) {
  const auto completion = ParseCompletionRequest(R"({"prompt": "Once"})");
  ASSERT_TRUE(completion.ok()) << completion.status();
  ASSERT_EQ(completion->prompts.size(), 1U);
  EXPECT_EQ(completion->prompts[0].text, "Once");
  EXPECT_EQ(completion->answers, 1);
  EXPECT_EQ(completion->tokens, 16);
  EXPECT_EQ(completion->temperature, 1);
  EXPECT_EQ(completion->top_p, 1);
  EXPECT_EQ(completion->top_k, 0);
  EXPECT_FALSE(completion->seed.has_value());
  EXPECT_FALSE(completion->stream);
  const auto chat = ParseChatRequest(absl::StrCat("{", kHello, "}"));
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_TRUE(chat->chat);
  EXPECT_FALSE(chat->tokens.has_value());
  EXPECT_EQ(chat->messages, R"([{"content":"hello","role":"user"}])");
}

TEST(ApiRequest, TakesAllThatIsHonoured) {
  const auto request = ParseCompletionRequest(R"({
      "model": "m", "prompt": [1, 2, 3], "max_tokens": 7, "temperature": 0, "top_p": 0.5,
      "top_k": -1, "seed": -1, "stop": ["a", "b"], "stream": true, "echo": null,
      "stream_options": {"include_usage": true}, "user": "x", "logit_bias": {}, "n": 3,
      "something_new": [1]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model, "m");
  EXPECT_THAT(*request->prompts.at(0).ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(request->tokens, 7);
  EXPECT_EQ(request->temperature, 0);
  EXPECT_EQ(request->top_p, 0.5);
  EXPECT_EQ(request->top_k, 0);
  EXPECT_EQ(request->seed, ~uint64_t{0});
  EXPECT_EQ(request->answers, 3);
  EXPECT_THAT(request->stop, ElementsAre("a", "b"));
  EXPECT_TRUE(request->stream && request->include_usage);
  EXPECT_THAT(ParseCompletionRequest(R"({"prompt": "a", "stop": "x"})")->stop, ElementsAre("x"));
  EXPECT_EQ(ParseChatRequest(absl::StrCat("{", kHello, R"(, "max_completion_tokens": 9})"))->tokens,
            9);
}

TEST(ApiRequest, TakesSeveralPrompts) {
  const auto texts = ParseCompletionRequest(R"({"prompt": ["one", "", [5]], "n": 2})");
  ASSERT_TRUE(texts.ok()) << texts.status();
  ASSERT_EQ(texts->prompts.size(), 3U);
  EXPECT_EQ(texts->prompts[0].text, "one");
  EXPECT_FALSE(texts->prompts[1].ids.has_value());
  EXPECT_THAT(*texts->prompts[2].ids, ElementsAre(5));
  const auto param = [](int prompts, int answers) {
    std::vector<std::string> each(static_cast<size_t>(prompts), "[1, 2]");
    const auto read = ParseCompletionRequest(
        absl::StrCat("{\"prompt\": [", absl::StrJoin(each, ","), "], \"n\": ", answers, "}"));
    return read.ok() ? "taken" : ErrorField(read.status(), "param");
  };
  EXPECT_EQ(param(64, 1), "taken");
  EXPECT_EQ(param(21, 3), "taken");
  EXPECT_EQ(param(1, 64), "taken");
  EXPECT_EQ(param(65, 1), "prompt");
  EXPECT_EQ(param(22, 3), "prompt");
  EXPECT_EQ(param(1, 65), "n");
  EXPECT_EQ(ChatParam(R"("n": 64)"), "taken");
}

TEST(ApiRequest, WhatIsNotHonouredIsRefusedByItsName) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"best_of", "3"},
      {"use_beam_search", "true"},
      {"suffix", "\"end\""},
      {"tools", R"([{"type": "function"}])"},
      {"tool_choice", "\"required\""},
      {"functions", R"([{"name": "f"}])"},
      {"function_call", R"({"name": "f"})"},
      {"web_search_options", R"({"a": 1})"},
      {"response_format", R"({"type": "json_object"})"},
      {"response_format", R"({"type": "json_schema", "json_schema": {}})"},
      {"structured_outputs", R"({"json": "{}"})"},
      {"guided_json", R"({"type": "object"})"},
      {"guided_regex", "\"a*\""},
      {"guided_choice", R"(["a"])"},
      {"guided_grammar", "\"g\""},
      {"grammar", "\"g\""},
      {"json_schema", R"({"a": 1})"},
      {"prompt_logprobs", "0"},
      {"logit_bias", R"({"50256": -100})"},
      {"presence_penalty", "0.5"},
      {"frequency_penalty", "-1"},
      {"repetition_penalty", "1.1"},
      {"repeat_penalty", "1.1"},
      {"min_p", "0.1"},
      {"typical_p", "0.9"},
      {"mirostat", "1"},
      {"bad_words", R"(["x"])"},
      {"allowed_token_ids", "[1]"},
      {"min_tokens", "1"},
      {"ignore_eos", "true"},
      {"stop_token_ids", "[7]"},
      {"include_stop_str_in_output", "true"},
      {"skip_special_tokens", "false"},
      {"add_special_tokens", "false"},
      {"modalities", R"(["text", "audio"])"},
      {"audio", R"({"voice": "x"})"},
      {"chat_template", "\"{{ x }}\""},
      {"add_generation_prompt", "false"},
      {"continue_final_message", "true"},
      {"documents", R"([{"text": "a"}])"},
      {"reasoning_effort", "\"high\""},
  };
  for (const auto& [name, value] : cases) {
    const std::string field = absl::StrCat("\"", name, "\": ", value);
    EXPECT_EQ(ChatParam(field), name) << field;
    EXPECT_EQ(CompletionParam(field), name) << field;
    const auto refused = ParseChatRequest(absl::StrCat("{", kHello, ", ", field, "}"));
    EXPECT_EQ(ErrorField(refused.status(), "code"), "unsupported_parameter");
    EXPECT_THAT(ErrorField(refused.status(), "message"), HasSubstr(absl::StrCat("`", name, "`")));
  }
}

TEST(ApiRequest, WhatAsksForNothingIsTaken) {
  for (const char* field :
       {R"("n": 1)", R"("n": null)", R"("tools": [])", R"("tool_choice": "none")",
        R"("response_format": {"type": "text"})", R"("logprobs": false)", R"("top_logprobs": 0)",
        R"("presence_penalty": 0.0)", R"("repetition_penalty": 1)", R"("logit_bias": {})",
        R"("suffix": "")", R"("skip_special_tokens": true)", R"("add_generation_prompt": true)",
        R"("modalities": ["text"])", R"("ignore_eos": false)", R"("stop": [])",
        R"("store": true, "metadata": {"a": "b"}, "parallel_tool_calls": true)"}) {
    EXPECT_EQ(ChatParam(field), "taken") << field;
  }
}

TEST(ApiRequest, WrongValuesAreNamed) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"max_tokens", "0"},
      {"max_tokens", "1.5"},
      {"max_tokens", "\"7\""},
      {"max_tokens", "18446744073709551615"},
      {"max_completion_tokens", "-1"},
      {"temperature", "-0.1"},
      {"temperature", "\"hot\""},
      {"temperature", "101"},
      {"top_p", "0"},
      {"top_p", "1.01"},
      {"top_k", "-2"},
      {"top_k", "0.5"},
      {"seed", "1.5"},
      {"stop", "7"},
      {"stop", "\"\""},
      {"stop", R"(["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"},
      {"stop", R"(["a", null])"},
      {"stream", "\"yes\""},
      {"stream_options", R"({"include_usage": true})"},  // without a stream
      {"model", "7"},
      {"n", "0"},
      {"n", "65"},
      {"n", "true"},
  };
  for (const auto& [name, value] : cases) {
    const std::string field = absl::StrCat("\"", name, "\": ", value);
    EXPECT_EQ(ChatParam(field), name) << field;
    EXPECT_EQ(CompletionParam(field), name) << field;
  }
  EXPECT_EQ(ChatParam(R"("stream": true, "stream_options": 1)"), "stream_options");
  EXPECT_EQ(ChatParam(R"("stream": true, "stream_options": {"include_usage": 1})"),
            "stream_options.include_usage");
  EXPECT_EQ(CompletionParam("\"stop\": \"" + std::string(1025, 'x') + "\""), "stop");
}

TEST(ApiRequest, PromptsAndMessagesAreChecked) {
  const std::vector<std::pair<const char*, const char*>> prompts = {
      {"null", "prompt"},
      {"7", "prompt"},
      {"[]", "prompt"},
      {"[1, -1]", "prompt"},
      {"[1, 4294967296]", "prompt"},
      {"[1, \"a\"]", "prompt"},
      {"{}", "prompt"},
      {"[[[1]]]", "prompt[0]"},
      {"[\"a\", 7]", "prompt[1]"},
      {"[[1], [2], []]", "prompt[2]"}};
  for (const auto& [prompt, param] : prompts) {
    const auto request = ParseCompletionRequest(absl::StrCat(R"({"prompt": )", prompt, "}"));
    ASSERT_FALSE(request.ok()) << prompt;
    EXPECT_EQ(ErrorField(request.status(), "param"), param) << prompt;
  }
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"null", "messages"},
      {"[]", "messages"},
      {"[7]", "messages[0]"},
      {R"([{"content": "a"}])", "messages[0].role"},
      {R"([{"role": "tool", "content": "a"}])", "messages[0].role"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": 7}])", "messages[0].content"},
      {R"([{"role": "user", "content": "a"}, {"role": "user", "content": []}])",
       "messages[1].content"},
      {R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role": "user", "content": [{"type": "text", "text": 1}]}])",
       "messages[0].content[0].text"},
      {R"([{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}])",
       "messages[0].tool_calls"},
  };
  for (const auto& [messages, param] : cases) {
    const auto request = ParseChatRequest(absl::StrCat(R"({"messages": )", messages, "}"));
    ASSERT_FALSE(request.ok()) << messages;
    EXPECT_EQ(ErrorField(request.status(), "param"), param) << messages;
  }
  EXPECT_EQ(ParseChatRequest(R"({"messages": [{"role": "developer", "content": [
      {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})")
                ->messages,
            R"([{"content":"a\nb","role":"system"}])");
  EXPECT_EQ(ChatParam(R"("chat_template_kwargs": 7)"), "chat_template_kwargs");
  EXPECT_EQ(ParseChatRequest(
                absl::StrCat("{", kHello, R"(, "chat_template_kwargs": {"thoughts": false}})"))
                ->template_arguments,
            R"({"thoughts":false})");
  EXPECT_EQ(ChatParam(R"("echo": true)"), "echo");
}

TEST(ApiRequest, LogProbabilities) {
  const auto best = [](const char* more) {
    const auto read = ParseCompletionRequest(absl::StrCat(R"({"prompt": "a", )", more, "}"));
    EXPECT_TRUE(read.ok()) << read.status();
    return read->best;
  };
  EXPECT_EQ(best(R"("logprobs": 0)"), 0);
  EXPECT_EQ(best(R"("logprobs": 5, "top_logprobs": 0)"), 5);
  EXPECT_EQ(best(R"("logprobs": null)"), std::nullopt);
  EXPECT_EQ(best(R"("logprobs": false)"), std::nullopt);
  EXPECT_EQ(CompletionParam(R"("logprobs": true)"), "logprobs");
  EXPECT_EQ(CompletionParam(R"("logprobs": 21)"), "logprobs");
  EXPECT_EQ(CompletionParam(R"("logprobs": 1, "top_logprobs": 1)"), "top_logprobs");
  const auto chat = [](const char* more) {
    const auto read = ParseChatRequest(
        absl::StrCat(R"({"messages": [{"role": "user", "content": "a"}], )", more, "}"));
    EXPECT_TRUE(read.ok()) << read.status();
    return read->best;
  };
  EXPECT_EQ(chat(R"("logprobs": true)"), 0);
  EXPECT_EQ(chat(R"("logprobs": true, "top_logprobs": 20)"), 20);
  EXPECT_EQ(chat(R"("logprobs": false, "top_logprobs": 0)"), std::nullopt);
  EXPECT_EQ(ChatParam(R"("logprobs": 1)"), "logprobs");
  EXPECT_EQ(ChatParam(R"("top_logprobs": 2)"), "top_logprobs");
  EXPECT_EQ(ChatParam(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs");
}

// The likelihood of a text alone.
TEST(ApiRequest, NoTokensNeedMakeMoreThanAnEcho) {
  const auto read =
      ParseCompletionRequest(R"({"prompt": [1, 2], "echo": true, "logprobs": 1, "max_tokens": 0})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tokens, 0);
  EXPECT_TRUE(read->echo);
  EXPECT_EQ(CompletionParam(R"("echo": true, "max_tokens": 0)"), "max_tokens");
  EXPECT_EQ(CompletionParam(R"("logprobs": 1, "max_tokens": 0)"), "max_tokens");
}

TEST(ApiRequest, WhatIsNoObjectIsRefused) {
  for (const char* body :
       {"", "{", "[]", "7", "{\"prompt\": \"\xff\"}", "{\"prompt\": \"\\ud800\"}",
        R"({"prompt": "a"} x)", R"({"temperature": 1e999, "prompt": "a"})"}) {
    EXPECT_EQ(ParseCompletionRequest(body).status().code(), absl::StatusCode::kInvalidArgument)
        << body;
  }
  const std::string deep = std::string(1000, '[') + std::string(1000, ']');
  EXPECT_THAT(ParseChatRequest(absl::StrCat(R"({"x": )", deep, "}")).status().message(),
              HasSubstr("nested"));
  // Brackets of a text are none.
  EXPECT_TRUE(
      ParseCompletionRequest(absl::StrCat(R"({"prompt": "\")", std::string(100, '['), "\"}")).ok());
}

}  // namespace
}  // namespace milepost::client
