#include "common/generation_lines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace milepost {
namespace {

TEST(GenerationLines, ComeBackAsTheyWere) {
  const TextLine text = {.tokens = 16,
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
  const TextLine scored = {.scored = true, .best = 0, .prompt = {3, 4}};
  EXPECT_EQ(FormatTextLine(scored), "score 0 3,4");
  EXPECT_EQ(*ParseTextLine("score 0 3,4"), scored);
  const std::vector<TrainerLine> lines = {
      {.kind = TrainerLine::kModel, .vocabulary = 256, .window = 64},
      {.kind = TrainerLine::kToken, .token = {.token = {.token = 108}}},
      {.kind = TrainerLine::kToken, .token = {.token = {108, -1.0 / 3}}, .scored = true},
      {.kind = TrainerLine::kToken,
       .token = {.token = {108, -1e-300}, .best = {{7, -0.1}, {8, -INFINITY}}},
       .scored = true},
      {.kind = TrainerLine::kEnd},
      {.kind = TrainerLine::kRefused, .message = "top_p must be above 0"}};
  for (const TrainerLine& line : lines) {
    const auto again = ParseTrainerLine(FormatTrainerLine(line));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, line);
  }
  EXPECT_EQ(FormatTrainerLine({.kind = TrainerLine::kRefused, .message = "a\nb"}), "refused a b");
}

TEST(GenerationLines, OthersAreRefused) {
  for (const char* line : {"", "text", "text 1 0 0 1 0 -", "text a 0 0 1 0 - 1",
                           "text 1 0 0 1 -1 - 1", "text 1 0 0 1 0 - 1,,2", "text 1 0 0 1 0 x 1",
                           "text 1 0 0 1 0 - 99999999999", "score 1", "score x 1", "stop"}) {
    EXPECT_EQ(ParseTextLine(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
  for (const char* line : {"", "token", "token x", "token 1 x", "token 1 -1 2", "token 1 -1 2:x",
                           "token 1 -1 2:-1 3", "model 1", "model 1 2 3", "ended", "refused"}) {
    EXPECT_EQ(ParseTrainerLine(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
}

}  // namespace
}  // namespace milepost
