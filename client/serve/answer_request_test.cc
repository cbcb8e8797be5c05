#include "client/serve/answer_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/serve/api_error.h"
#include "client/serve/fake_text_model.h"

namespace milepost::client {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class KeptReply : public TextReply {
 public:
  bool Left() const override { return left_after_ >= 0 && writes_ >= left_after_; }
  void Fail(const absl::Status& status) override { failed = status; }
  void Whole(std::string text) override { whole = json::parse(text); }
  void Write(const std::string& chunk) override {
    ++writes_;
    text += chunk;
  }
  void End() override { ended = true; }
  void LeaveAfter(int writes) { left_after_ = writes; }

  // The events, without the last.
  std::vector<json> Events() const {
    std::vector<json> events;
    std::vector<std::string> parts = absl::StrSplit(text, "\n\n");
    EXPECT_GE(parts.size(), 2U) << text;
    EXPECT_EQ(parts.back(), "");
    EXPECT_EQ(parts[parts.size() - 2], "data: [DONE]");
    for (size_t i = 0; i + 2 < parts.size(); ++i) {
      absl::string_view data = parts[i];
      EXPECT_TRUE(absl::ConsumePrefix(&data, "data: ")) << data;
      EXPECT_EQ(data.find('\n'), absl::string_view::npos);
      events.push_back(json::parse(data));
    }
    return events;
  }

  absl::Status failed;
  json whole;
  std::string text;
  bool ended = false;

 private:
  int writes_ = 0;
  int left_after_ = -1;
};

const AnswerContext kContext = {.id = "id-1", .created = 5, .model = "m", .seed = 9};

TextRequest Chat(bool stream) {
  return {.chat = true, .messages = "[]", .template_arguments = "{}", .stream = stream};
}

TEST(AnswerRequest, AWholeCompletion) {
  FakeTextModel model("Hello there");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest({.prompts = {{"abc"}}, .tokens = 5, .temperature = 0.5, .top_k = 3},
                          kContext, model, reply),
            absl::OkStatus());
  EXPECT_EQ(reply.whole, json::parse(R"({
      "id": "id-1", "object": "text_completion", "created": 5, "model": "m",
      "choices": [{"index": 0, "text": "Hello", "logprobs": null, "finish_reason": "length"}],
      "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}})"));
  EXPECT_EQ(model.asked(), (TextLine{.tokens = 5,
                                     .temperature = 0.5,
                                     .top_k = 3,
                                     .top_p = 1,
                                     .seed = 9,
                                     .prompt = {'a', 'b', 'c'}}));
}

TEST(AnswerRequest, AWholeChatEndsWhereTheModelEndsIt) {
  FakeTextModel model("Hi");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest(Chat(false), kContext, model, reply), absl::OkStatus());
  EXPECT_EQ(reply.whole, json::parse(R"({
      "id": "id-1", "object": "chat.completion", "created": 5, "model": "m",
      "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": null},
                   "logprobs": null, "finish_reason": "stop"}],
      "usage": {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}})"));
  EXPECT_EQ(model.asked().tokens, 60);  // what there is room for
}

TEST(AnswerRequest, AChatsStream) {
  FakeTextModel model("H\xc3\xa9");
  KeptReply reply;
  TextRequest request = Chat(true);
  request.include_usage = true;
  ASSERT_EQ(AnswerRequest(request, kContext, model, reply), absl::OkStatus());
  EXPECT_TRUE(reply.ended);
  const std::vector<json> events = reply.Events();
  ASSERT_EQ(events.size(), 5U);
  const auto choice = [](const char* delta, const char* finish) {
    return json::parse(absl::StrCat(R"([{"index": 0, "delta": )", delta,
                                    R"(, "logprobs": null, "finish_reason": )", finish, "}]"));
  };
  EXPECT_EQ(events[0]["choices"], choice(R"({"role": "assistant", "content": ""})", "null"));
  EXPECT_EQ(events[1]["choices"], choice(R"({"content": "H"})", "null"));
  EXPECT_EQ(events[2]["choices"], choice("{\"content\": \"\xc3\xa9\"}", "null"));
  EXPECT_EQ(events[3]["choices"], choice("{}", "\"stop\""));
  EXPECT_EQ(events[4]["choices"], json::array());
  EXPECT_EQ(events[4]["usage"]["completion_tokens"], 4);
  for (const json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], "id-1");
    EXPECT_TRUE(event.contains("usage"));
  }
}

TEST(AnswerRequest, ACompletionsStreamStopsAtAText) {
  FakeTextModel model("one. two. three");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest(
                {.prompts = {{"p"}}, .tokens = 40, .stop = {". t"}, .echo = true, .stream = true},
                kContext, model, reply),
            absl::OkStatus());
  std::string text;
  for (const json& event : reply.Events()) {
    EXPECT_EQ(event["object"], "text_completion");
    EXPECT_FALSE(event.contains("usage"));
    text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "pone");
  EXPECT_EQ(reply.Events().back()["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(model.made(), 6);  // none behind the stop text
}

TEST(AnswerRequest, ACompletionTellsHowLikelyItsTokensAre) {
  FakeTextModel model("xa");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest({.prompts = {{"", {{'p', 0x68}}}}, .tokens = 2, .best = 1, .echo = true},
                          kContext, model, reply),
            absl::OkStatus());
  EXPECT_EQ(reply.whole["choices"][0]["text"], "phxa");
  EXPECT_EQ(reply.whole["choices"][0]["logprobs"], json::parse(R"({
      "tokens": ["p", "h", "x", "a"],
      "token_logprobs": [null, -13, -15, -12.125],
      "top_logprobs": [null, {"a": -12.125, "h": -13}, {"a": -12.125, "x": -15}, {"a": -12.125}],
      "text_offset": [0, 1, 2, 3]})"));
  EXPECT_EQ(model.asked().best, 1);
  ASSERT_EQ(AnswerRequest({.prompts = {{"ph"}}, .tokens = 0, .best = 0, .echo = true}, kContext,
                          model, reply),
            absl::OkStatus());
  EXPECT_EQ(reply.whole["choices"][0]["text"], "ph");
  EXPECT_EQ(reply.whole["choices"][0]["logprobs"]["token_logprobs"], json::parse("[null, -13]"));
  EXPECT_EQ(reply.whole["usage"]["completion_tokens"], 0);
}

TEST(AnswerRequest, AChatTellsHowLikelyItsTokensAre) {
  FakeTextModel model("x");
  KeptReply reply;
  TextRequest request = Chat(false);
  request.best = 2;
  ASSERT_EQ(AnswerRequest(request, kContext, model, reply), absl::OkStatus());
  EXPECT_EQ(reply.whole["choices"][0]["logprobs"], json::parse(R"({"content": [
      {"token": "x", "logprob": -15, "bytes": null,
       "top_logprobs": [{"token": "a", "logprob": -12.125, "bytes": null},
                        {"token": "b", "logprob": -12.25, "bytes": null}]}],
      "refusal": null})"));
}

// Once each, whatever is held back.
TEST(AnswerRequest, AStreamTellsOfEachTokenOnce) {
  FakeTextModel model("H\xc3\xa9 ab");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest({.prompts = {{"pq"}},
                           .tokens = 6,
                           .stop = {"bx"},
                           .best = 0,
                           .echo = true,
                           .stream = true},
                          kContext, model, reply),
            absl::OkStatus());
  std::string text;
  std::vector<std::string> tokens;
  std::vector<int64_t> offsets;
  for (const json& event : reply.Events()) {
    text += event["choices"][0]["text"].get<std::string>();
    const json& told = event["choices"][0]["logprobs"];
    for (const json& token : told["tokens"]) tokens.push_back(token);
    for (const json& offset : told["text_offset"]) offsets.push_back(offset);
  }
  EXPECT_EQ(text, "pqH\xc3\xa9 ab");
  EXPECT_THAT(tokens, ElementsAre("p", "q", "H", "byte 195", "byte 169", " ", "a", "b"));
  EXPECT_THAT(offsets, ElementsAre(0, 1, 2, 3, 3, 4, 5, 6));  // characters of the text
}

// A token that begins texts is none of the text.
TEST(AnswerRequest, OffsetsAreThoseOfTheText) {
  FakeTextModel model("x");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest(
                {.prompts = {{"", {{256, 'p', 0xc3, 0xa9}}}}, .tokens = 2, .best = 0, .echo = true},
                kContext, model, reply),
            absl::OkStatus());
  EXPECT_EQ(reply.whole["choices"][0]["text"], "p\xc3\xa9x");
  EXPECT_EQ(reply.whole["choices"][0]["logprobs"]["text_offset"],
            json::parse("[0, 0, 1, 1, 2, 3]"));
  EXPECT_EQ(reply.whole["choices"][0]["logprobs"]["tokens"][5], "<end>");
}

TEST(AnswerRequest, WhoeverLeavesWhileAPromptIsScoredHasNoAnswerMade) {
  FakeTextModel model("x");
  KeptReply reply;
  reply.LeaveAfter(0);
  ASSERT_EQ(
      AnswerRequest({.prompts = {{"abc"}}, .tokens = 5, .best = 1, .echo = true, .stream = true},
                    kContext, model, reply),
      absl::OkStatus());
  EXPECT_EQ(model.asked().tokens, 0);
}

TEST(AnswerRequest, ATextThatCannotBeScoredIsAnError) {
  FakeTextModel model("x");
  model.set_error(absl::InvalidArgumentError("no figures"));
  KeptReply reply;
  EXPECT_EQ(AnswerRequest({.prompts = {{"p"}}, .tokens = 1, .best = 0, .echo = true}, kContext,
                          model, reply),
            absl::OkStatus());
  EXPECT_EQ(reply.failed.message(), "no figures");
}

TEST(AnswerRequest, WhatIsHeldBackComesAtTheEnd) {
  FakeTextModel model("ab\xc3");
  KeptReply reply;
  ASSERT_EQ(
      AnswerRequest({.prompts = {{"p"}}, .tokens = 3, .stop = {"bx"}}, kContext, model, reply),
      absl::OkStatus());
  EXPECT_EQ(reply.whole["choices"][0]["text"], "ab\xef\xbf\xbd");
}

TEST(AnswerRequest, WhoeverLeavesEndsTheText) {
  FakeTextModel model("x");
  model.set_ends_itself(false);
  KeptReply reply;
  reply.LeaveAfter(3);
  ASSERT_EQ(
      AnswerRequest({.prompts = {{"p"}}, .tokens = 60, .stream = true}, kContext, model, reply),
      absl::OkStatus());
  EXPECT_EQ(model.made(), 4);
  EXPECT_THAT(reply.text, testing::Not(HasSubstr("DONE")));
}

TEST(AnswerRequest, WhatDoesNotFitIsRefused) {
  FakeTextModel model("x");
  const auto refused = [&](const TextRequest& request) {
    KeptReply reply;
    EXPECT_EQ(AnswerRequest(request, kContext, model, reply), absl::OkStatus());
    return json::parse(ErrorJson(reply.failed))["error"];
  };
  const json long_answer = refused({.prompts = {{"abc"}}, .tokens = 62});
  EXPECT_EQ(long_answer["param"], "max_tokens");
  EXPECT_EQ(long_answer["code"], "context_length_exceeded");
  EXPECT_THAT(long_answer["message"].get<std::string>(), HasSubstr("room for 64 tokens"));
  EXPECT_EQ(refused({.prompts = {{std::string(64, 'x')}}, .tokens = 1})["param"], "prompt");
  EXPECT_EQ(refused({.prompts = {{""}}, .tokens = 1})["param"], "prompt");
  EXPECT_EQ(refused({.prompts = {{"", {{1, 257}}}}, .tokens = 1})["param"], "prompt");
  TextRequest chat = Chat(false);
  chat.messages = R"([{"role": "system"}])";
  EXPECT_EQ(refused(chat)["param"], "messages");
  EXPECT_EQ(model.made(), 0);
}

// To each prompt as many answers as are asked for, in order.
TEST(AnswerRequest, SeveralAnswersInOne) {
  FakeTextModel model("xyz");
  KeptReply reply;
  TextRequest request = {.prompts = {{"abc"}, {"", {{'d'}}}}, .tokens = 2, .answers = 2};
  request.echo = true;
  ASSERT_EQ(AnswerRequest(request, kContext, model, reply), absl::OkStatus());
  const json& choices = reply.whole["choices"];
  ASSERT_EQ(choices.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(choices[i]["index"], i);
    EXPECT_EQ(choices[i]["text"], i < 2 ? "abcxy" : "dxy");
    EXPECT_EQ(choices[i]["finish_reason"], "length");
  }
  EXPECT_EQ(reply.whole["usage"], json::parse(R"({
      "prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12})"));
  EXPECT_EQ(model.asked().seed, 12U);  // of the fourth answer in all
  request.seed = ~uint64_t{0};         // of the second answer to a prompt
  ASSERT_EQ(AnswerRequest(request, kContext, model, reply), absl::OkStatus());
  EXPECT_EQ(model.asked().seed, 0U);
}

// What is told of all tokens is held until the request is answered.
TEST(AnswerRequest, LogProbabilitiesOfManyTokensAreRefused) {
  FakeTextModel model("x");
  model.its_facts().window = 10000;
  KeptReply reply;
  TextRequest request = {.chat = true, .tokens = 1000, .answers = 64, .best = 20};
  EXPECT_EQ(AnswerRequest(request, kContext, model, reply), absl::OkStatus());
  EXPECT_EQ(json::parse(ErrorJson(reply.failed))["error"]["param"], "top_logprobs");
  EXPECT_EQ(model.made(), 0);
}

// The first answer ends while the second goes on.
TEST(AnswerRequest, AnAnswerOfAStreamEndsWhenItDoes) {
  FakeTextModel model("xyz");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest({.prompts = {{"p"}, {"q"}}, .tokens = 3, .stop = {"y"}, .stream = true},
                          kContext, model, reply),
            absl::OkStatus());
  std::vector<std::string> finished;
  for (const json& event : reply.Events()) {
    const json& choice = event["choices"][0];
    const std::string what =
        choice["finish_reason"].is_string() ? choice["finish_reason"] : choice["text"];
    finished.push_back(absl::StrCat(choice["index"].get<int>(), what));
  }
  EXPECT_THAT(finished, ElementsAre("0x", "1x", "0stop", "1stop"));
}

TEST(AnswerRequest, SeveralPromptsAreScored) {
  FakeTextModel model("x");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest({.prompts = {{"ab"}, {"acd"}}, .tokens = 0, .best = 0, .echo = true},
                          kContext, model, reply),
            absl::OkStatus());
  const json& choices = reply.whole["choices"];
  ASSERT_EQ(choices.size(), 2U);
  EXPECT_EQ(choices[0]["logprobs"]["token_logprobs"], json::parse("[null, -12.25]"));
  EXPECT_EQ(choices[1]["logprobs"]["token_logprobs"], json::parse("[null, -12.375, -12.5]"));
  EXPECT_EQ(choices[1]["logprobs"]["text_offset"], json::parse("[0, 1, 2]"));
}

TEST(AnswerRequest, AStreamOfSeveralAnswers) {
  FakeTextModel model("xyz");
  KeptReply reply;
  ASSERT_EQ(AnswerRequest({.prompts = {{"p"}}, .tokens = 2, .answers = 2, .stream = true}, kContext,
                          model, reply),
            absl::OkStatus());
  std::vector<std::string> texts(2), finished(2);
  for (const json& event : reply.Events()) {
    const json& choice = event["choices"][0];
    const size_t index = choice["index"];
    texts.at(index) += choice["text"].get<std::string>();
    if (choice["finish_reason"].is_string()) finished.at(index) += choice["finish_reason"];
  }
  EXPECT_THAT(texts, ElementsAre("xy", "xy"));
  EXPECT_THAT(finished, ElementsAre("length", "length"));
}

TEST(AnswerRequest, APromptOfSeveralIsRefusedByItsPlace) {
  FakeTextModel model("x");
  KeptReply reply;
  EXPECT_EQ(
      AnswerRequest({.prompts = {{"a"}, {"", {{1, 257}}}}, .tokens = 1}, kContext, model, reply),
      absl::OkStatus());
  EXPECT_EQ(json::parse(ErrorJson(reply.failed))["error"]["param"], "prompt[1]");
  EXPECT_EQ(model.made(), 0);
}

TEST(AnswerRequest, AModelThatEndsIsAnError) {
  FakeTextModel model("x");
  model.set_error(absl::UnavailableError("the model has ended"));
  KeptReply whole;
  EXPECT_EQ(AnswerRequest({.prompts = {{"p"}}, .tokens = 2}, kContext, model, whole).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(whole.failed.message(), "the model has ended");
  KeptReply stream;
  EXPECT_FALSE(
      AnswerRequest({.prompts = {{"p"}}, .tokens = 2, .stream = true}, kContext, model, stream)
          .ok());
  EXPECT_THAT(stream.text, HasSubstr(R"(data: {"error":{"message":"the model has ended")"));
  EXPECT_TRUE(stream.ended);
}

}  // namespace
}  // namespace milepost::client
