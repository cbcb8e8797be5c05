#include "worker/trainer/serve_texts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/generation_lines.h"
#include "common/line_pipe.h"

namespace milepost::worker {
namespace {

// Two texts side by side, of which each step makes a token. One counts up from the prompt's last
// token. Refuses an empty prompt, and breaks at 999. Scores: each token is as likely as its number
// says.
class CountingMaker : public TextMaker {
 public:
  absl::StatusOr<int32_t> Start(absl::Span<const int32_t> prompt,
                                const runtime::GenerateOptions& options) override {
    if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
    if (prompt.back() == 999) return absl::InternalError("the device is lost");
    std::vector<TokenScore> tokens;
    for (int64_t i = 1; i <= options.tokens; ++i) {
      tokens.push_back({.token = {prompt.back() + static_cast<int32_t>(i), -1}});
    }
    return Begin(std::move(tokens));
  }
  absl::StatusOr<int32_t> StartScore(absl::Span<const int32_t> text, int64_t best) override {
    if (text.empty()) return absl::InvalidArgumentError("there is no text");
    std::vector<TokenScore> tokens;
    for (const int32_t id : text.subspan(1)) {
      const TokenChoice choice = {id, -0.5 * id};
      tokens.push_back({.token = choice, .best = {static_cast<size_t>(best), choice}});
    }
    return Begin(std::move(tokens));
  }
  absl::Status Step(const runtime::EmitTextToken& emit) override {
    for (int32_t i : {0, 1}) {
      if (!Runs(i)) continue;
      const TokenScore next = texts_[i].front();
      texts_[i].pop_front();
      if (!emit(i, next)) End(i);
    }
    return absl::OkStatus();
  }
  bool Runs(int32_t text) const override { return !texts_[text].empty(); }
  void End(int32_t text) override { texts_[text].clear(); }

 private:
  absl::StatusOr<int32_t> Begin(std::vector<TokenScore> tokens) {
    for (int32_t i : {0, 1}) {
      if (Runs(i)) continue;
      texts_[i].assign(tokens.begin(), tokens.end());
      return i;
    }
    return absl::ResourceExhaustedError("two texts are being made");
  }
  std::deque<TokenScore> texts_[2];
};

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
      CountingMaker maker;
      ended_ = AnswerLines(maker, UniqueFd(in), out);
    });
  }
  ~ServeTextsTest() override { End().IgnoreError(); }

  absl::Status End() {
    ask_ = UniqueFd();
    if (serves_.joinable()) serves_.join();
    return ended_;
  }
  void Say(const std::string& line) { EXPECT_EQ(WriteLine(ask_.get(), line), absl::OkStatus()); }
  void Ask(const TextLine& text) { Say(FormatTextLine(text)); }
  std::string Answer() {
    const auto line = answers_->Next();
    return line.ok() ? *line : std::string(line.status().message());
  }

  // The next one that begins so; or the end.
  std::string Until(const std::string& begin) {
    std::string line = Answer();
    while (!line.starts_with(begin) && line != "the other end is closed") line = Answer();
    return line;
  }

  UniqueFd ask_;
  std::optional<LineReader> answers_;
  std::thread serves_;
  absl::Status ended_;
};

TEST_F(ServeTextsTest, TextsAreMadeOneAfterAnother) {
  Ask({.number = 7, .tokens = 2, .prompt = {1, 5}});
  for (const char* line : {"token 7 6", "token 7 7", "end 7"}) EXPECT_EQ(Answer(), line);
  Ask({.number = 8, .tokens = 1});
  EXPECT_EQ(Answer(), "refused 8 the prompt is empty");
  Say("stop 7");  // it came too late
  Ask({.number = 9, .tokens = 1, .prompt = {8}});
  for (const char* line : {"token 9 9", "end 9"}) EXPECT_EQ(Answer(), line);
  Ask({.number = 10, .tokens = 0, .prompt = {8}});
  EXPECT_EQ(Answer(), "end 10");
  EXPECT_EQ(End(), absl::OkStatus());
}

TEST_F(ServeTextsTest, TextsAreScored) {
  Ask({.number = 3, .scored = true, .best = 2, .prompt = {1, 5, 2}});
  for (const char* line : {"token 3 5 -2.5 5:-2.5,5:-2.5", "token 3 2 -1 2:-1,2:-1", "end 3"}) {
    EXPECT_EQ(Answer(), line);
  }
  Ask({.number = 4, .scored = true, .prompt = {1, 5}});
  for (const char* line : {"token 4 5 -2.5", "end 4"}) EXPECT_EQ(Answer(), line);
  Ask({.number = 5, .scored = true});
  EXPECT_EQ(Answer(), "refused 5 there is no text");
  Ask({.number = 6, .tokens = 1, .best = 0, .prompt = {1, 5}});
  for (const char* line : {"token 6 6 -1", "end 6"}) EXPECT_EQ(Answer(), line);
}

constexpr int64_t kManyTokens = 1'000'000;  // more than a pipe holds

// Several texts are under way; one that is stopped ends before its last token, and others go on.
TEST_F(ServeTextsTest, AStopEndsItsTextAlone) {
  Ask({.number = 1, .tokens = kManyTokens, .prompt = {0}});
  EXPECT_EQ(Answer(), "token 1 1");
  Ask({.number = 2, .tokens = kManyTokens, .prompt = {0}});
  EXPECT_EQ(Until("token 2 "), "token 2 1");
  Ask({.number = 3, .tokens = 1, .prompt = {0}});  // more than can be
  EXPECT_EQ(Until("refused"), "refused 3 two texts are being made");
  Say("stop 1");
  EXPECT_EQ(Until("end"), "end 1");
  EXPECT_TRUE(Answer().starts_with("token 2 "));
  Ask({.number = 4, .tokens = 1, .prompt = {8}});
  EXPECT_EQ(Until("token 4 "), "token 4 9");
  EXPECT_EQ(Until("end"), "end 4");
}

TEST_F(ServeTextsTest, EndsWhenNobodyReads) {
  Ask({.number = 1, .tokens = kManyTokens, .prompt = {0}});
  EXPECT_EQ(Answer(), "token 1 1");
  answers_.reset();
  serves_.join();
  EXPECT_EQ(ended_, absl::OkStatus());
}

TEST_F(ServeTextsTest, EndsWhenNobodyAsks) {
  Ask({.number = 1, .tokens = kManyTokens, .prompt = {0}});
  EXPECT_EQ(Answer(), "token 1 1");
  ask_ = UniqueFd();
  while (Answer() != "the other end is closed") {
  }
  EXPECT_EQ(End(), absl::OkStatus());
}

TEST_F(ServeTextsTest, AnErrorOfTheDeviceEndsIt) {
  Ask({.number = 1, .tokens = 1, .prompt = {999}});
  EXPECT_EQ(Answer(), "the other end is closed");
  EXPECT_EQ(End().code(), absl::StatusCode::kInternal);
}

TEST_F(ServeTextsTest, OtherLinesEndIt) {
  Say("hello");
  EXPECT_EQ(Answer(), "the other end is closed");
  EXPECT_EQ(End().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ServeTextsTest, ANumberThatIsUnderWayEndsIt) {
  Ask({.number = 1, .tokens = kManyTokens, .prompt = {0}});
  Ask({.number = 1, .tokens = kManyTokens, .prompt = {0}});
  while (Answer() != "the other end is closed") {
  }
  EXPECT_EQ(End().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace milepost::worker
