// The server over HTTP, before a model that says what the test wants.
#include "client/serve/api_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/serve/fake_text_model.h"
#include "common/http/http_test_client.h"

namespace milepost::client {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct ApiTold : HttpTold {
  json Error() const { return json::parse(body, nullptr, false).value("error", json()); }
};

// Asks for a text and reads as it likes.
class RawClient : public HttpRawClient {
 public:
  RawClient(const std::string& url, const std::string& body)
      : HttpRawClient(url, absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                        "Content-Type: application/json\r\nContent-Length: ",
                                        body.size(), "\r\n\r\n", body)) {}
};

class ApiServerTest : public testing::Test {
 protected:
  ApiServerTest() : model_("Hello", [this] { BeforeToken(); }) {
    options_.port = 0;
    options_.model = "m";
    options_.created = 3;
    options_.now = [] { return int64_t{5}; };
    options_.seed = [] { return uint64_t{7}; };
  }
  ~ApiServerTest() override {
    Let(1 << 30);
    server_.reset();
  }

  void Start() {
    auto listener = ApiListener::Open(options_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    auto server = ApiServer::Start(options_, *std::move(listener), &model_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ApiTold Post(const std::string& path, const std::string& body,
               const std::vector<std::string>& headers = {}) {
    return Ask({.body = body, .headers = headers}, path);
  }
  ApiTold Get(const std::string& path, const std::vector<std::string>& headers = {}) {
    return Ask({.headers = headers}, path);
  }
  ApiTold Ask(HttpAsked asked, const std::string& path) {
    asked.url = server_->url() + path;
    return ApiTold{AskHttp(asked)};
  }
  // The model makes this many tokens more, then waits.
  void Let(int tokens) {
    absl::MutexLock lock(&mutex_);
    allowed_ = tokens;
  }
  void BeforeToken() {
    absl::MutexLock lock(&mutex_);
    ++wanted_;
    const auto may = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return allowed_ > 0; };
    mutex_.Await(absl::Condition(&may));
    --allowed_;
  }
  // Until the model has been asked for this many tokens in all.
  void AwaitWanted(int tokens) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return wanted_ >= tokens; };
    mutex_.Await(absl::Condition(&there));
  }
  void AwaitWaiting(size_t requests) {
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    while (server_->waiting() != requests && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_EQ(server_->waiting(), requests);
  }

  absl::Mutex mutex_;
  int allowed_ ABSL_GUARDED_BY(mutex_) = 1 << 30;
  int wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  FakeTextModel model_;
  ApiOptions options_;
  std::unique_ptr<ApiServer> server_;
};

constexpr char kAsk[] = R"({"model": "m", "prompt": "a", "max_tokens": 10})";
constexpr char kAskChat[] = R"({"messages": [{"role": "user", "content": "hi"}]})";

TEST_F(ApiServerTest, AnswersCompletionsChatsAndWhatModelsThereAre) {
  Start();
  const ApiTold completion = Post("/v1/completions", kAsk);
  EXPECT_EQ(completion.status, 200) << completion.body;
  EXPECT_EQ(json::parse(completion.body)["choices"][0]["text"], "Hello");
  const ApiTold chat = Post("/v1/chat/completions", kAskChat);
  EXPECT_EQ(json::parse(chat.body)["choices"][0]["message"]["content"], "Hello");
  EXPECT_NE(json::parse(chat.body)["id"], json::parse(completion.body)["id"]);
  EXPECT_EQ(json::parse(Get("/v1/models").body), json::parse(R"({"object": "list", "data": [
      {"id": "m", "object": "model", "created": 3, "owned_by": "milepost"}]})"));
  EXPECT_EQ(json::parse(Get("/v1/models/m").body)["id"], "m");
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ApiServerTest, StreamsEachTokenAsItIsMade) {
  Start();
  Let(1);
  RawClient client(server_->url(), R"({"prompt": "a", "max_tokens": 10, "stream": true})");
  EXPECT_THAT(client.Until("\"H\""), HasSubstr("text/event-stream"));
  Let(1);
  client.Until("\"e\"");
  Let(100);
  const std::string all = client.Until("[DONE]");
  EXPECT_THAT(all, HasSubstr("data: [DONE]\n\n"));
  EXPECT_THAT(all, HasSubstr("\"finish_reason\":\"stop\""));
}

TEST_F(ApiServerTest, BadRequestsHaveTheApisErrors) {
  Start();
  const auto is = [](const ApiTold& told, int status, const char* type, const json& param,
                     const json& code) {
    EXPECT_EQ(told.status, status) << told.body;
    const json error = told.Error();
    EXPECT_FALSE(error.value("message", "").empty()) << told.body;
    EXPECT_EQ(error.value("type", ""), type) << told.body;
    EXPECT_EQ(error["param"], param) << told.body;
    EXPECT_EQ(error["code"], code) << told.body;
    EXPECT_THAT(told.head, HasSubstr("application/json"));
  };
  constexpr char kBad[] = "invalid_request_error";
  is(Post("/v1/completions", "{"), 400, kBad, nullptr, nullptr);
  is(Post("/v1/completions", R"({"prompt": "a", "temperature": -1})"), 400, kBad, "temperature",
     nullptr);
  is(Post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "n": 65})"),
     400, kBad, "n", nullptr);
  is(Post("/v1/completions", R"({"prompt": "a", "max_tokens": 64})"), 400, kBad, "max_tokens",
     "context_length_exceeded");
  is(Post("/v1/completions", R"({"prompt": "a", "model": "other"})"), 404, kBad, nullptr,
     "model_not_found");
  is(Get("/v1/models/other"), 404, kBad, nullptr, "model_not_found");
  is(Post("/v1/embeddings", "{}"), 404, kBad, nullptr, nullptr);
  is(Get("/v1/completions"), 405, kBad, nullptr, nullptr);
  is(Post("/v1/models", "{}"), 405, kBad, nullptr, nullptr);
  is(Ask({.body = "{}", .method = "PUT"}, "/v1/completions"), 405, kBad, nullptr, nullptr);
  is(Post("/v1/completions", std::string((1 << 20) + 1, ' ')), 413, kBad, nullptr, nullptr);
  // What a page of another site can make a browser send.
  is(Post("/v1/completions", kAsk, {"Sec-Fetch-Site: cross-site"}), 403, "permission_error",
     nullptr, nullptr);
  is(Post("/v1/completions", kAsk, {"Host: rebound.example"}), 403, "permission_error", nullptr,
     nullptr);
  is(Post("/v1/completions", kAsk, {"Content-Type: text/plain"}), 400, kBad, nullptr, nullptr);
  EXPECT_EQ(model_.made(), 0);
}

TEST_F(ApiServerTest, AModelWithoutATemplateHasNoChats) {
  model_.its_facts().chat = absl::InvalidArgumentError("--tokenizer FOLDER names one");
  Start();
  const ApiTold told = Post("/v1/chat/completions", kAskChat);
  EXPECT_EQ(told.status, 400);
  EXPECT_THAT(told.body, HasSubstr("--tokenizer"));
  EXPECT_EQ(Post("/v1/completions", kAsk).status, 200);
}

TEST_F(ApiServerTest, AKeyIsAskedFor) {
  options_.key = "secret";
  Start();
  const ApiTold none = Post("/v1/completions", kAsk);
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.Error()["code"], "invalid_api_key");
  EXPECT_THAT(none.head, HasSubstr("WWW-Authenticate: Bearer"));
  for (const char* wrong : {"Authorization: Bearer secre", "Authorization: Bearer secrets",
                            "Authorization: Basic secret", "Authorization: secret"}) {
    EXPECT_EQ(Post("/v1/completions", kAsk, {wrong}).status, 401) << wrong;
    EXPECT_EQ(Get("/v1/models", {wrong}).status, 401) << wrong;
  }
  const std::string right = "Authorization: Bearer secret";
  EXPECT_EQ(Post("/v1/completions", kAsk, {right, "Host: gpu-1:8000"}).status, 200);
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ApiServerTest, OtherAddressesNeedAKey) {
  options_.host = "0.0.0.0";
  const auto refused = ApiListener::Open(options_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("--api-key-file"));
  options_.key = "secret";
  EXPECT_TRUE(ApiListener::Open(options_).ok());
  options_.key = "";
  options_.host = "127.0.0.1";
  const auto first = ApiListener::Open(options_);
  ASSERT_TRUE(first.ok());
  options_.port = std::stoi(first->url.substr(first->url.rfind(':') + 1));
  EXPECT_EQ(ApiListener::Open(options_).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ApiServerTest, AFullQueueSaysSo) {
  options_.most_waiting = 2;
  Start();
  Let(0);
  RawClient answered(server_->url(), kAsk);
  AwaitWanted(1);
  RawClient second(server_->url(), kAsk);
  AwaitWaiting(1);
  RawClient third(server_->url(), kAsk);
  AwaitWaiting(2);
  const ApiTold fourth = Post("/v1/completions", kAsk);
  EXPECT_EQ(fourth.status, 429);
  EXPECT_EQ(fourth.Error()["code"], "queue_full");
  EXPECT_THAT(fourth.head, HasSubstr("Retry-After: "));
  Let(1 << 30);
  for (RawClient* client : {&answered, &second, &third}) {
    EXPECT_THAT(client->Until("}}"), HasSubstr("\"text\":\"Hello\""));
  }
}

// As many requests are answered at once as the model makes texts; then others wait.
TEST_F(ApiServerTest, RequestsAreAnsweredSideBySide) {
  model_.its_facts().texts = 3;
  options_.most_waiting = 1;
  Start();
  Let(0);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 1; i <= 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->url(), kAsk));
    AwaitWanted(i);
  }
  clients.push_back(std::make_unique<RawClient>(server_->url(), kAsk));
  AwaitWaiting(1);
  const ApiTold fifth = Post("/v1/completions", kAsk);
  EXPECT_EQ(fifth.status, 429);
  EXPECT_THAT(fifth.body, HasSubstr("answers 3 requests at a time"));
  clients[1].reset();  // and makes room
  Let(1 << 30);
  for (const int i : {0, 2, 3}) {
    EXPECT_THAT(clients[static_cast<size_t>(i)]->Until("}}"), HasSubstr("\"text\":\"Hello\""));
  }
}

TEST_F(ApiServerTest, WhoLeavesMakesRoom) {
  options_.most_waiting = 1;
  model_.set_ends_itself(false);
  Start();
  Let(0);
  auto answered = std::make_unique<RawClient>(server_->url(), kAsk);
  AwaitWanted(1);
  auto waiting = std::make_unique<RawClient>(server_->url(), kAsk);
  AwaitWaiting(1);
  waiting.reset();
  answered.reset();
  RawClient next(server_->url(), R"({"prompt": "a", "max_tokens": 3})");
  Let(1 << 30);
  EXPECT_THAT(next.Until("}}"), HasSubstr("\"text\":\"Hel\""));
  // The first got the token that was under way, and the one that waited got none.
  EXPECT_LE(model_.made(), 3 + 2);
}

TEST_F(ApiServerTest, WhoLeavesAStreamEndsItsText) {
  model_.set_ends_itself(false);
  model_.its_facts().window = 1 << 20;
  Start();
  Let(2);
  {
    RawClient client(server_->url(), R"({"prompt": "a", "max_tokens": 1000000, "stream": true})");
    client.Until("\"e\"");
  }
  Let(1 << 30);
  EXPECT_EQ(Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})").status, 200);
  EXPECT_LT(model_.made(), 100'000);
}

TEST_F(ApiServerTest, ClientsAreAnsweredOneAfterTheOther) {
  Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(
        server_->url(), absl::StrCat(R"({"prompt": "a", "max_tokens": )", i % 5 + 1,
                                     i % 2 == 0 ? R"(, "stop": "l"})" : "}")));
  }
  for (int i = 0; i < 8; ++i) {
    const std::string text =
        std::string("Hello").substr(0, i % 2 == 0 ? std::min(i % 5 + 1, 2) : i % 5 + 1);
    EXPECT_THAT(clients[static_cast<size_t>(i)]->Until("}}"),
                HasSubstr(absl::StrCat("\"text\":\"", text, "\"")));
  }
}

TEST_F(ApiServerTest, EndsWhileRequestsWait) {
  model_.set_ends_itself(false);
  Start();
  Let(0);
  RawClient answered(server_->url(), kAsk);
  AwaitWanted(1);
  RawClient second(server_->url(), kAsk);
  AwaitWaiting(1);
  std::thread ends([&] { server_.reset(); });
  answered.Until("an answer that never comes");
  Let(1 << 30);
  ends.join();
  // Of the first the token under way. The other one's client may be cut off a moment later.
  EXPECT_LE(model_.made(), 1 + 10);
}

}  // namespace
}  // namespace milepost::client
