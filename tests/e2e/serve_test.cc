// `milepost serve` as its clients have it: a checkpoint of a run, asked over HTTP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cli/tokenizer_stand_ins.h"
#include "client/serve/text_pieces.h"
#include "common/exit_codes.h"
#include "common/http/http_test_client.h"
#include "common/line_pipe.h"
#include "common/spec/to_yaml.h"
#include "common/subprocess.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr absl::Duration kServePatience = absl::Seconds(120);

struct Answered : HttpTold {
  json Json() const { return json::parse(body, nullptr, false); }
  // A stream's texts, put together.
  std::string Streamed() const {
    std::string text;
    for (absl::string_view event : absl::StrSplit(body, "\n\n")) {
      if (!absl::ConsumePrefix(&event, "data: ") || event == "[DONE]") continue;
      const json chunk = json::parse(event, nullptr, false);
      if (chunk.is_discarded()) return absl::StrCat("no JSON: ", event);
      for (const json& choice : chunk["choices"]) {
        text += choice.contains("text") ? choice["text"].get<std::string>()
                                        : choice["delta"].value("content", "");
      }
    }
    return text;
  }
};

class ServeTest : public testing::Test {
 protected:
  ServeTest() { setenv("PYTHONPATH", folder_.c_str(), 1); }
  ~ServeTest() override {
    serves_.reset();
    unsetenv("PYTHONPATH");
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  std::string TextOf(const std::string& name) const {
    std::ifstream file(Path(name));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  SpawnOptions Command(std::vector<std::string> argv) const {
    SpawnOptions options;
    argv.insert(argv.begin(), std::string(getenv("MILEPOST_BIN_DIR")) + "/milepost");
    argv.insert(argv.end(), {"--data-dir", Path("data")});
    options.argv = std::move(argv);
    options.env = {{"HOME", folder_}, {"XDG_CONFIG_HOME", ""}, {"MILEPOST_COORDINATOR", ""}};
    options.err = Redirect::File(Path("err"));
    return options;
  }
  // What a command prints.
  std::string Milepost(std::vector<std::string> argv, int exit_code = kExitOk) const {
    SpawnOptions options = Command(std::move(argv));
    std::filesystem::remove(Path("out"));
    options.out = Redirect::File(Path("out"));
    auto process = Subprocess::Spawn(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    const auto end = process->Wait(absl::Now() + kServePatience);
    EXPECT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->exit_code, exit_code) << TextOf("err");
    return TextOf("out");
  }
  // A job whose samples are shorter than the context that there is for texts.
  void Train(int64_t vocabulary = 256) {
    v1::JobSpec spec = SmallJob(folder_, 30);
    spec.mutable_model()->mutable_gpt2()->set_context(2048);
    spec.mutable_model()->mutable_gpt2()->set_vocabulary(vocabulary);
    spec.mutable_data()->set_sequence_length(64);
    Write("spec.yaml", MessageToYaml(spec));
    Milepost({"run", Path("spec.yaml")});
  }
  // Until it says where it listens.
  void Serve(std::vector<std::string> more) {
    more.insert(more.begin(), {"serve", "--port", "0", "--model-name", "tiny"});
    SpawnOptions options = Command(std::move(more));
    options.out = Redirect::Pipe();
    auto process = Subprocess::Spawn(std::move(options));
    ASSERT_TRUE(process.ok()) << process.status();
    serves_.emplace(*std::move(process));
    LineReader out(serves_->TakeOut(), 1 << 20);
    const auto line = out.Next();
    ASSERT_TRUE(line.ok()) << line.status() << TextOf("err");
    url_ = *line;
    ASSERT_TRUE(absl::StartsWith(url_, "http://127.0.0.1:")) << url_;
  }
  int Stop(int signal) {
    EXPECT_EQ(serves_->Signal(signal), absl::OkStatus());
    const auto end = serves_->Wait(absl::Now() + kServePatience);
    EXPECT_TRUE(end.ok() && end->signal == 0) << TextOf("err");
    return end.ok() ? end->exit_code : -1;
  }

  Answered Ask(const std::string& path, const json& body) const {
    return Answered{AskHttp({.url = url_ + path, .body = body.is_null() ? "" : body.dump()})};
  }
  // Begins to read a long stream, and leaves.
  void AskAndLeave(int tokens = 2000) const {
    const std::string body =
        absl::StrCat(R"({"prompt": "a", "stream": true, "max_tokens": )", tokens, "}");
    HttpRawClient client(
        url_, absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: ",
                           "application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
    EXPECT_THAT(client.Until("data: "), HasSubstr("data: "));
  }

  const std::string folder_ = MakeFolder("milepost_serve");
  std::optional<Subprocess> serves_;
  std::string url_;
};

// What `milepost generate` prints behind the prompt, as a client gets it.
std::string Behind(const std::string& printed, const std::string& prompt) {
  EXPECT_TRUE(absl::StartsWith(printed, prompt) && absl::EndsWith(printed, "\n")) << printed;
  client::Utf8Pieces utf8;
  const std::string bytes = printed.substr(prompt.size(), printed.size() - prompt.size() - 1);
  const std::string text = utf8.Feed(bytes);
  return text + utf8.Rest();
}

TEST_F(ServeTest, ACheckpointAnswersAsGenerateDoes) {
  Train();
  const std::vector<std::string> generate = {"generate", "--prompt", "abc", "--tokens", "40"};
  const auto printed = [&](const std::vector<std::string>& more) {
    std::vector<std::string> argv = generate;
    argv.insert(argv.end(), more.begin(), more.end());
    return Behind(Milepost(argv), "abc");
  };
  const std::string greedy = printed({"--temperature", "0"});
  const std::string drawn =
      printed({"--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--seed", "7"});
  Serve({});
  const json ask = {{"model", "tiny"}, {"prompt", "abc"}, {"max_tokens", 40}, {"temperature", 0}};
  const Answered whole = Ask("/v1/completions", ask);
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(whole.Json()["choices"][0]["text"], greedy);
  EXPECT_EQ(whole.Json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole.Json()["usage"]["completion_tokens"], 40);
  json stream = ask;
  stream["stream"] = true;
  EXPECT_EQ(Ask("/v1/completions", stream).Streamed(), greedy);
  const json draw = {{"prompt", {97, 98, 99}}, {"max_tokens", 40},
                     {"temperature", 0.7},     {"top_k", 5},
                     {"top_p", 0.9},           {"seed", 7}};
  // Two at once, who share nothing.
  Answered beside;
  std::thread other([&] { beside = Ask("/v1/completions", stream); });
  EXPECT_EQ(Ask("/v1/completions", draw).Json()["choices"][0]["text"], drawn);
  other.join();
  EXPECT_EQ(beside.Streamed(), greedy);
  AskAndLeave();
  EXPECT_EQ(Ask("/v1/completions", ask).Json()["choices"][0]["text"], greedy);

  EXPECT_EQ(Ask("/v1/models", nullptr).Json()["data"][0]["id"], "tiny");
  const Answered long_one = Ask("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 2046}});
  EXPECT_EQ(long_one.status, 400);
  EXPECT_EQ(long_one.Json()["error"]["param"], "max_tokens");
  const Answered chat =
      Ask("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "a"}}}}});
  EXPECT_EQ(chat.status, 400);
  EXPECT_THAT(chat.body, HasSubstr("--tokenizer FOLDER"));
  // The data directory is free for a run again.
  EXPECT_THAT(Milepost({"run", Path("spec.yaml")}), HasSubstr("already finished jobs/1"));
  EXPECT_EQ(Stop(SIGTERM), kExitOk);
}

// The texts of many clients, some of whom leave, are those that each has alone.
TEST_F(ServeTest, ClientsAreAnsweredSideBySide) {
  Train();
  Serve({"--parallel", "3", "--context", "300"});
  const auto ask = [&](size_t i, bool stream) {
    const json body = {{"prompt", std::string(1 + i * 37 % 150, static_cast<char>('a' + i))},
                       {"max_tokens", 20 + i * 13 % 100},
                       {"temperature", i % 2 == 0 ? 0.0 : 0.9},
                       {"seed", i},
                       {"logprobs", 1},
                       {"stream", stream}};
    return Ask("/v1/completions", body);
  };
  constexpr size_t kClients = 8;
  std::vector<json> alone(kClients);
  for (size_t i = 0; i < kClients; ++i) alone[i] = ask(i, false).Json()["choices"];
  std::vector<Answered> beside(kClients);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] { beside[i] = ask(i, i % 3 == 0); });
  }
  AskAndLeave(200);
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < kClients; ++i) {
    if (i % 3 == 0) {
      EXPECT_EQ(beside[i].Streamed(), alone[i][0]["text"]) << i;
    } else {
      EXPECT_EQ(beside[i].Json()["choices"], alone[i]) << beside[i].body;
    }
  }
  // Several prompts of one request, more than are made side by side.
  json several = {
      {"prompt", json::array()}, {"max_tokens", 9}, {"temperature", 0.9}, {"seed", 4}, {"n", 2},
      {"logprobs", 2},           {"echo", true}};
  for (const char* prompt : {"abc", "x", "a longer one"}) several["prompt"].push_back(prompt);
  const json all = Ask("/v1/completions", several).Json();
  ASSERT_EQ(all["choices"].size(), 6U) << all;
  for (size_t i = 0; i < 6; ++i) {
    json one = several;
    one["prompt"] = several["prompt"][i / 2];
    one["seed"] = 4 + i % 2;
    one["n"] = 1;
    json want = Ask("/v1/completions", one).Json()["choices"][0];
    want["index"] = i;
    EXPECT_EQ(all["choices"][i], want);
  }
  EXPECT_EQ(Stop(SIGTERM), kExitOk);
}

TEST_F(ServeTest, PromptsOfAFileAreGeneratedSideBySide) {
  Train();
  Write("prompts.jsonl", R"({"prompt": "abc"}
{"prompt": "In the beginning was a longer line"}
{"prompt": "abc"}
{"prompt": "x"}
)");
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--prompts", Path("prompts.jsonl"), "--tokens", "90",
                               "--temperature", "0.7", "--seed", "7"});
    std::vector<json> lines;
    const std::string printed = Milepost(more);
    for (absl::string_view line : absl::StrSplit(printed, '\n', absl::SkipEmpty())) {
      lines.push_back(json::parse(line));
    }
    return lines;
  };
  const std::vector<json> lines = generate({"--parallel", "3"});
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines, generate({"--parallel", "1"}));
  EXPECT_EQ(lines[0], lines[2]);
  EXPECT_EQ(lines[3]["prompt"], "x");
  EXPECT_EQ(lines[3]["tokens"], 90);
  EXPECT_EQ(lines[3]["finish_reason"], "length");
  EXPECT_EQ(lines[0]["text"], Behind(Milepost({"generate", "--prompt", "abc", "--tokens", "90",
                                               "--temperature", "0.7", "--seed", "7"}),
                                     "abc"));
  Milepost({"generate", "--prompts", Path("none.txt")}, kExitNotFound);
  Milepost({"generate", "--prompt", "a", "--parallel", "2"}, kExitUsage);
}

TEST_F(ServeTest, AChatIsRenderedByTheTokenizersTemplate) {
  Train(/*vocabulary=*/260);  // its tokens are no bytes
  Write("tokenizers.py", client::kGeneratingTokenizersStandIn);
  Write("transformers.py", client::kGeneratingTransformersStandIn);
  Write("model/tokenizer.json", "{}");
  Write("model/tokenizer_config.json", R"({"eos_token": "|", "chat_template": "x"})");
  Write("bare/tokenizer.json", "{}");
  const std::string chat = Milepost({"generate", "--chat", "--prompt", "hi", "--tokenizer",
                                     Path("model"), "--tokens", "30", "--temperature", "0"});
  Serve({"--tokenizer", Path("model")});
  json ask = {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
              {"max_tokens", 30},
              {"temperature", 0}};
  const Answered whole = Ask("/v1/chat/completions", ask);
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(whole.Json()["choices"][0]["message"]["content"].get<std::string>() + "\n", chat);
  Write("prompts.txt", "hi\nho\nhi\n");
  const std::string texts =
      Milepost({"generate", "--chat", "--prompts", Path("prompts.txt"), "--tokenizer",
                Path("model"), "--tokens", "30", "--temperature", "0"});
  const std::vector<std::string> lines = absl::StrSplit(texts, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3U) << texts;
  EXPECT_EQ(json::parse(lines[2])["text"].get<std::string>() + "\n", chat);
  EXPECT_EQ(lines[0], lines[2]);
  EXPECT_EQ(whole.Json()["usage"]["prompt_tokens"], 7);
  ask["stream"] = true;
  EXPECT_EQ(Ask("/v1/chat/completions", ask).Streamed() + "\n", chat);
  ask["stream"] = false;
  ask["chat_template_kwargs"] = {{"loud", true}};
  EXPECT_EQ(Ask("/v1/chat/completions", ask).status, 200);
  ask["messages"][0]["role"] = "assistant";
  const Answered refused = Ask("/v1/chat/completions", ask);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.Json()["error"]["param"], "messages");
  EXPECT_THAT(refused.body, HasSubstr("a user speaks first"));
  EXPECT_EQ(Stop(SIGINT), kExitOk);

  Serve({"--tokenizer", Path("bare")});
  ask["messages"][0]["role"] = "user";
  EXPECT_THAT(Ask("/v1/chat/completions", ask).body, HasSubstr("has no chat template"));
  EXPECT_EQ(Stop(SIGTERM), kExitOk);
}

TEST_F(ServeTest, WhatCannotBeServedSaysWhy) {
  Milepost({"serve", "--host", "0.0.0.0", "--port", "0"}, kExitUsage);
  EXPECT_THAT(TextOf("err"), HasSubstr("give --api-key-file FILE"));
  Write("key", "two words");
  std::filesystem::permissions(Path("key"), std::filesystem::perms::owner_read);
  Milepost({"serve", "--api-key-file", Path("key")}, kExitUsage);
  EXPECT_THAT(TextOf("err"), HasSubstr("must hold one key"));
  Milepost({"serve", "--api-key-file", Path("none")}, kExitNotFound);
  Milepost({"serve", "--port", "0", "--job", "9"}, kExitError);
}

// The model's process is not there any more: nothing could be answered.
TEST_F(ServeTest, EndsWithItsModel) {
  Train();
  Serve({});
  const std::string pid = absl::StrCat(serves_->pid());
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat");
    std::string number, name, state, parent;
    if (stat >> number >> name >> state >> parent && parent == pid) {
      EXPECT_EQ(kill(std::stoi(number), SIGKILL), 0);
    }
  }
  const auto end = serves_->Wait(absl::Now() + kServePatience);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, kExitError);
  EXPECT_THAT(TextOf("err"), HasSubstr("the model's process has ended"));
}

}  // namespace
}  // namespace milepost::e2e
