#include "common/generation_lines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace milepost {
namespace {

TEST(GenerationLines, ComeBackAsTheyWere) {
  const TextLine text = {.number = 12,
                         .tokens = 16,
                         .temperature = 0.1,
                         .top_k = 40,
                         .top_p = 1.0 / 3,
                         .seed = std::numeric_limits<uint64_t>::max(),
                         .best = 5,
                         .prompt = {0, 7, 151'935}};
  const auto back = ParseTextLine(FormatTextLine(text));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, text);
  EXPECT_EQ(*ParseTextLine(FormatTextLine({})), TextLine());
  const TextLine scored = {.number = 5, .scored = true, .best = 0, .prompt = {3, 4}};
  EXPECT_EQ(FormatTextLine(scored), "score 5 0 3,4");
  EXPECT_EQ(*ParseTextLine("score 5 0 3,4"), scored);
  EXPECT_EQ(FormatStopLine(5), "stop 5");
  EXPECT_EQ(ParseStopLine("stop 5"), 5);
  const std::vector<TrainerLine> lines = {
      {.kind = TrainerLine::kModel, .vocabulary = 256, .window = 64, .texts = 4},
      {.kind = TrainerLine::kToken, .number = 3, .token = {.token = {.token = 108}}},
      {.kind = TrainerLine::kToken, .token = {.token = {108, -1.0 / 3}}, .scored = true},
      {.kind = TrainerLine::kToken,
       .token = {.token = {108, -1e-300}, .best = {{7, -0.1}, {8, -INFINITY}}},
       .scored = true},
      {.kind = TrainerLine::kEnd, .number = 8},
      {.kind = TrainerLine::kRefused, .number = 9, .message = "top_p must be above 0"}};
  for (const TrainerLine& line : lines) {
    const auto again = ParseTrainerLine(FormatTrainerLine(line));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, line);
  }
  EXPECT_EQ(FormatTrainerLine({.kind = TrainerLine::kRefused, .message = "a\nb"}), "refused 0 a b");
}

TEST(GenerationLines, OthersAreRefused) {
  for (const char* line :
       {"", "text", "text 1 1 0 0 1 0 -", "text 1 a 0 0 1 0 - 1", "text b 1 0 0 1 0 - 1",
        "text 1 1 0 0 1 -1 - 1", "text 1 1 0 0 1 0 - 1,,2", "text 1 1 0 0 1 0 x 1",
        "text 1 1 0 0 1 0 - 99999999999", "score 1 1", "score 1 x 1", "score x 1 1", "stop 1"}) {
    EXPECT_EQ(ParseTextLine(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
  for (const char* line : {"", "stop", "stop ", "stop x", "stop 1 2", "text 1 1 0 0 1 0 - 1"}) {
    EXPECT_EQ(ParseStopLine(line), std::nullopt) << line;
  }
  for (const char* line :
       {"", "token", "token 1", "token x 1", "token 1 x", "token 1 1 x", "token 1 1 -1 2",
        "token 1 1 -1 2:x", "token 1 1 -1 2:-1 3", "model 1 2", "model 1 2 3 4", "end", "end x",
        "ended 1", "refused", "refused x why"}) {
    EXPECT_EQ(ParseTrainerLine(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
}

}  // namespace
}  // namespace milepost
