#include "worker/trainer/serve_texts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>
#include <thread>

#include "common/generation_lines.h"
#include "common/line_pipe.h"

namespace milepost::worker {
namespace {

// Counts up from the prompt's last token; refuses an empty prompt, and breaks at 999.
absl::Status CountUp(absl::Span<const int32_t> prompt, const runtime::GenerateOptions& options,
                     const runtime::EmitToken& emit) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (prompt.back() == 999) return absl::InternalError("the device is lost");
  for (int64_t i = 1; i <= options.tokens; ++i) {
    if (!emit({.token = {.token = prompt.back() + static_cast<int32_t>(i), .log_prob = -1}})) break;
  }
  return absl::OkStatus();
}

// Each token is as likely as its number says.
absl::Status ScoreById(absl::Span<const int32_t> text, int64_t best,
                       const runtime::EmitToken& emit) {
  if (text.empty()) return absl::InvalidArgumentError("there is no text");
  for (const int32_t id : text.subspan(1)) {
    const TokenChoice choice = {id, -0.5 * id};
    if (!emit({.token = choice, .best = {static_cast<size_t>(best), choice}})) break;
  }
  return absl::OkStatus();
}

class ServeTextsTest : public testing::Test {
 protected:
  ServeTextsTest() {
    signal(SIGPIPE, SIG_IGN);
    int ask[2];
    int answer[2];
    EXPECT_EQ(pipe2(ask, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(answer, O_CLOEXEC), 0);
    ask_ = UniqueFd(ask[1]);
    answers_.emplace(UniqueFd(answer[0]), size_t{1} << 20);
    serves_ = std::thread([this, in = ask[0], out = answer[1]] {
      const UniqueFd closed_at_the_end(out);
      ended_ = AnswerLines({CountUp, ScoreById}, UniqueFd(in), out);
    });
  }
  ~ServeTextsTest() override { End().IgnoreError(); }

  absl::Status End() {
    ask_ = UniqueFd();
    if (serves_.joinable()) serves_.join();
    return ended_;
  }
  void Ask(const TextLine& text) {
    EXPECT_EQ(WriteLine(ask_.get(), FormatTextLine(text)), absl::OkStatus());
  }
  std::string Answer() {
    const auto line = answers_->Next();
    return line.ok() ? *line : std::string(line.status().message());
  }

  UniqueFd ask_;
  std::optional<LineReader> answers_;
  std::thread serves_;
  absl::Status ended_;
};

TEST_F(ServeTextsTest, TextsAreMadeOneAfterAnother) {
  Ask({.tokens = 2, .prompt = {1, 5}});
  for (const char* line : {"token 6", "token 7", "end"}) EXPECT_EQ(Answer(), line);
  Ask({.tokens = 1});
  EXPECT_EQ(Answer(), "refused the prompt is empty");
  ASSERT_EQ(WriteLine(ask_.get(), kStopLine), absl::OkStatus());  // it came too late
  Ask({.tokens = 1, .prompt = {8}});
  for (const char* line : {"token 9", "end"}) EXPECT_EQ(Answer(), line);
  EXPECT_EQ(End(), absl::OkStatus());
}

TEST_F(ServeTextsTest, TextsAreScored) {
  Ask({.scored = true, .best = 2, .prompt = {1, 5, 2}});
  for (const char* line : {"token 5 -2.5 5:-2.5,5:-2.5", "token 2 -1 2:-1,2:-1", "end"}) {
    EXPECT_EQ(Answer(), line);
  }
  Ask({.scored = true, .prompt = {1, 5}});
  for (const char* line : {"token 5 -2.5", "end"}) EXPECT_EQ(Answer(), line);
  Ask({.scored = true});
  EXPECT_EQ(Answer(), "refused there is no text");
  Ask({.tokens = 1, .best = 0, .prompt = {1, 5}});
  for (const char* line : {"token 6 -1", "end"}) EXPECT_EQ(Answer(), line);
}

TEST_F(ServeTextsTest, AStopEndsATextBeforeItsLastToken) {
  constexpr int64_t kTokens = 1'000'000;  // more than a pipe holds
  Ask({.tokens = kTokens, .prompt = {0}});
  EXPECT_EQ(Answer(), "token 1");
  ASSERT_EQ(WriteLine(ask_.get(), kStopLine), absl::OkStatus());
  std::string last;
  int64_t count = 1;
  for (last = Answer(); last.starts_with("token "); last = Answer()) ++count;
  EXPECT_EQ(last, "end");
  EXPECT_LT(count, kTokens);
  Ask({.tokens = 1, .prompt = {8}});
  for (const char* line : {"token 9", "end"}) EXPECT_EQ(Answer(), line);
}

TEST_F(ServeTextsTest, EndsWhenNobodyReads) {
  Ask({.tokens = 1'000'000, .prompt = {0}});
  EXPECT_EQ(Answer(), "token 1");
  answers_.reset();
  serves_.join();
  EXPECT_EQ(ended_, absl::OkStatus());
}

TEST_F(ServeTextsTest, AnErrorOfTheDeviceEndsIt) {
  Ask({.tokens = 1, .prompt = {999}});
  EXPECT_EQ(Answer(), "the other end is closed");
  EXPECT_EQ(End().code(), absl::StatusCode::kInternal);
}

TEST_F(ServeTextsTest, OtherLinesEndIt) {
  ASSERT_EQ(WriteLine(ask_.get(), "hello"), absl::OkStatus());
  EXPECT_EQ(Answer(), "the other end is closed");
  EXPECT_EQ(End().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace milepost::worker
