// Before shell scripts in the places of milepost-trainer and Python.
#include "client/serve/model_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_replace.h"

namespace milepost::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SpawnOptions Shell(const std::string& script) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

// Says "Hi!" for ever, or as many tokens as it is asked for; `stop` ends it. Makes two texts side
// by side: of one that is asked for 7 tokens and the next one, first the next one.
constexpr char kTrainer[] = R"sh(
echo model 256 64 2
make() {
  i=0
  while [ $i -lt "$2" ]; do
    case $((i % 3)) in 0) echo "token $1 72";; 1) echo "token $1 105";; 2) echo "token $1 33";; esac
    i=$((i + 1))
  done
  echo "end $1"
}
while read -r word number tokens rest; do
  [ "$word" = stop ] && continue
  [ "$word" = score ] && {
    echo "token $number 104 -0.5 104:-0.5,72:-2"; echo "token $number 33 -8 72:-2"
    echo "end $number"; continue
  }
  [ "$tokens" = 13 ] && { echo "refused $number no thirteen"; continue; }
  [ "$tokens" = 99 ] && exit 3
  [ "$tokens" = 98 ] && { read -r word number rest; echo "end $number"; continue; }
  [ "$tokens" = 7 ] && {
    read -r word next tokens rest
    echo "token $number 97"; make "$next" "$tokens"; make "$number" 6; continue
  }
  make "$number" "$tokens"
done
)sh";
// Ids of any text are 1, 2; a token is written as <>.
constexpr char kTokenizer[] = R"sh(
echo '{"ids": [9, 7], "no_chat": ""}'
while read -r line; do
  case $line in
    *wrong*) echo '{"error": "it is wrong"}';;
    *messages*) echo '{"ids": [3, 4]}';;
    *text*) echo '{"ids": [1, 2]}';;
    *begin*) echo '{}';;
    *decode*7,7*) echo '{"error": "no such ids"}';;
    *decode*) echo '{"texts": ["se", "ei"]}';;
    *"[7,8]"*) echo '{"texts": ["seven", "eight"]}';;
    *"[9]"*) echo '{"texts": ["nine"]}';;
    *pieces*) echo '{"texts": []}';;
    *) echo '{"text": "<>"}';;
  esac
done
)sh";

bool NobodyLeft() { return false; }

std::string TextOf(ModelProcesses& model, const TextLine& asked, int most = 1'000'000) {
  std::string text;
  const absl::Status made = model.Generate({asked}, true, NobodyLeft,
                                           [&](size_t, const TokenScore&, absl::string_view bytes) {
                                             text.append(bytes.data(), bytes.size());
                                             return --most > 0;
                                           });
  return made.ok() ? text : std::string(made.message());
}

absl::Status MakeOne(ModelProcesses& model, const TextLine& asked) {
  return model.Generate({asked}, true, NobodyLeft,
                        [](size_t, const TokenScore&, absl::string_view) { return true; });
}

class ModelProcessesTest : public testing::Test {
 protected:
  ModelProcessesTest() { signal(SIGPIPE, SIG_IGN); }
};

TEST_F(ModelProcessesTest, BytesNeedNoTokenizer) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = {}});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  EXPECT_EQ(model.facts().vocabulary, 256);
  EXPECT_EQ(model.facts().window, 64);
  EXPECT_THAT(model.facts().chat.message(), HasSubstr("--tokenizer FOLDER"));
  EXPECT_THAT(*model.Encode("a\xc3\xa9"), ElementsAre('a', 0xc3, 0xa9));
  EXPECT_THAT(*model.Encode(""), ElementsAre('\n'));
  EXPECT_EQ(TextOf(model, {.tokens = 4, .prompt = {1}}), "Hi!H");
  EXPECT_EQ(TextOf(model, {.tokens = 13}), "no thirteen");
  EXPECT_THAT(*model.Decode({72, 0xc3, 0xa9}), ElementsAre("H", "\xc3", "\xa9"));
  EXPECT_THAT(*model.TokenTexts({72, 0xc3}), ElementsAre("H", "bytes:\\xc3"));
  // Nothing is left of a text that ends early.
  EXPECT_EQ(TextOf(model, {.tokens = 5000, .prompt = {1}}, 2), "Hi");
  EXPECT_EQ(TextOf(model, {.tokens = 3, .prompt = {1}}), "Hi!");
}

TEST_F(ModelProcessesTest, ATokenizerIsAskedForAllText) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = Shell(kTokenizer)});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  EXPECT_THAT(model.facts().ends, ElementsAre(7, 9));
  EXPECT_EQ(model.facts().chat, absl::OkStatus());
  EXPECT_THAT(*model.Encode("a"), ElementsAre(1, 2));
  EXPECT_THAT(*model.EncodeChat("[]", "{}"), ElementsAre(3, 4));
  EXPECT_EQ(model.Encode("wrong").status(), absl::InvalidArgumentError("it is wrong"));
  EXPECT_EQ(TextOf(model, {.tokens = 2, .prompt = {1}}), "<><>");
}

TEST_F(ModelProcessesTest, TextsAreScored) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = {}});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  std::vector<TokenScore> scores;
  for (const size_t most : {5, 1}) {
    scores.clear();
    EXPECT_EQ(model.Score({{.best = 2, .prompt = {1, 104, 33}}}, NobodyLeft,
                          [&](size_t, const TokenScore& score) {
                            scores.push_back(score);
                            return scores.size() < most;
                          }),
              absl::OkStatus());
    EXPECT_EQ(scores[0], (TokenScore{{104, -0.5}, {{104, -0.5}, {72, -2}}}));
    EXPECT_EQ(scores.size(), std::min<size_t>(2, most));
  }
}

// Of one caller: more than are made side by side, which end in another order than they began.
TEST_F(ModelProcessesTest, TextsAreMadeSideBySide) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = {}});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  EXPECT_EQ(model.facts().texts, 2);
  const std::vector<TextLine> texts = {{.tokens = 7}, {.tokens = 4}, {.tokens = 2}, {.tokens = 3}};
  std::vector<std::string> made(texts.size());
  std::vector<size_t> order;
  EXPECT_EQ(model.Generate(texts, true, NobodyLeft,
                           [&](size_t text, const TokenScore&, absl::string_view bytes) {
                             if (made[text].empty()) order.push_back(text);
                             made[text].append(bytes.data(), bytes.size());
                             return made[text].size() < 5;  // of the first, not all
                           }),
            absl::OkStatus());
  EXPECT_THAT(made, ElementsAre("aHi!H", "Hi!H", "Hi", "Hi!"));
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

// Of many callers.
TEST_F(ModelProcessesTest, CallersDoNotGetEachOthersTokens) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = Shell(kTokenizer)});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  std::vector<std::thread> callers;
  std::vector<std::string> made(8);
  for (size_t i = 0; i < made.size(); ++i) {
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        made[i] += TextOf(model, {.tokens = static_cast<int64_t>(i) % 5 + 1}) + " ";
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t i = 0; i < made.size(); ++i) {
    std::string one;
    for (size_t token = 0; token < i % 5 + 1; ++token) one += "<>";
    EXPECT_EQ(made[i], one + " " + one + " " + one + " " + one + " " + one + " ") << i;
  }
}

// What is refused ends the others of its call; of a caller who has left no more are begun.
TEST_F(ModelProcessesTest, ACallEndsAsAWhole) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = {}});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  const auto emit = [](size_t, const TokenScore&, absl::string_view) { return true; };
  EXPECT_EQ(model.Generate({{.tokens = 5}, {.tokens = 13}, {.tokens = 4}}, true, NobodyLeft, emit),
            absl::InvalidArgumentError("no thirteen"));
  ModelProcesses one(
      {.trainer = Shell(absl::StrReplaceAll(kTrainer, {{"64 2", "64 1"}})), .tokenizer = {}});
  ASSERT_EQ(one.Load(), absl::OkStatus());
  bool left = false;
  EXPECT_EQ(one.Generate(
                {{.tokens = 5}, {.tokens = 99}}, true, [&] { return left; },
                [&](size_t, const TokenScore&, absl::string_view) {
                  left = true;
                  return false;
                }),
            absl::OkStatus());
  EXPECT_EQ(one.Generate(
                {{.tokens = 99}}, true, [] { return true; }, emit),
            absl::OkStatus());
  EXPECT_EQ(TextOf(one, {.tokens = 3}), "Hi!");
}

// While its prompt is read no token comes that could show it: the trainer waits for the stop.
TEST_F(ModelProcessesTest, WhoLeavesBeforeTheFirstTokenEndsTheText) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = {}});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  std::atomic<int> looks = 0;
  EXPECT_EQ(model.Generate(
                {{.tokens = 98}}, true, [&] { return ++looks > 2; },
                [](size_t, const TokenScore&, absl::string_view) { return true; }),
            absl::OkStatus());
  EXPECT_EQ(TextOf(model, {.tokens = 3}), "Hi!");
}

TEST_F(ModelProcessesTest, ATokensTextIsAskedForOnce) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = Shell(kTokenizer)});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  EXPECT_THAT(*model.Decode({7, 8}), ElementsAre("se", "ei"));
  EXPECT_EQ(model.Decode({7, 7}).status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(*model.TokenTexts({8, 7, 8}), ElementsAre("eight", "seven", "eight"));
  EXPECT_THAT(*model.TokenTexts({9, 8, 7, 8}), ElementsAre("nine", "eight", "seven", "eight"));
  EXPECT_EQ(model.TokenTexts({5}).status().code(), absl::StatusCode::kInternal);
}

TEST_F(ModelProcessesTest, WhatCannotBeLoadedIsExplained) {
  const auto error = [](const std::string& trainer, const std::string& tokenizer) {
    ModelProcesses model({.trainer = Shell(trainer),
                          .tokenizer = tokenizer.empty() ? SpawnOptions() : Shell(tokenizer)});
    return std::string(model.Load().message());
  };
  EXPECT_THAT(error("exit 3", ""), HasSubstr("milepost-trainer: exit code 3"));
  EXPECT_THAT(error("echo model 1000 8 1; exec sleep 100", ""), HasSubstr("--tokenizer FOLDER"));
  EXPECT_THAT(error(kTrainer, "echo '{\"missing\": \"tokenizers\"}'"),
              HasSubstr("pip install 'tokenizers'"));
  EXPECT_THAT(error(kTrainer, "echo '{\"error\": \"no such file\"}'"), HasSubstr("no such file"));
  EXPECT_THAT(error(kTrainer, "exit 7"), HasSubstr("exit code 7"));
  EXPECT_THAT(error(kTrainer, "echo hello"), HasSubstr("no ids"));
}

TEST_F(ModelProcessesTest, AProcessThatEndsIsUnavailable) {
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = {}});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  EXPECT_EQ(MakeOne(model, {.tokens = 99}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(MakeOne(model, {.tokens = 1}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(model.ends().size(), 1U);
}

TEST_F(ModelProcessesTest, CancelEndsWaits) {
  ModelProcesses loads({.trainer = Shell("exec sleep 100"), .tokenizer = {}});
  std::thread cancels([&] { loads.Cancel(); });
  EXPECT_EQ(loads.Load().code(), absl::StatusCode::kCancelled);
  cancels.join();
  ModelProcesses model({.trainer = Shell(kTrainer), .tokenizer = {}});
  ASSERT_EQ(model.Load(), absl::OkStatus());
  model.Cancel();
  EXPECT_EQ(MakeOne(model, {.tokens = 1}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace milepost::client
