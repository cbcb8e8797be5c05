#include "engine/plan/printing/draw_schedule.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using ::testing::HasSubstr;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(DrawSchedule, HasABoxForEachPass) {
  const PipelineShape shape = {.stages = 2, .micro_batches = 3};
  const std::string svg = DrawSchedule(shape, {{1, 2, 0}, {1, 2, 0}}, "a & b");
  EXPECT_THAT(svg, HasSubstr("a &amp; b: 2 stages, 3 micro-batches, 1f1b"));
  EXPECT_THAT(svg, HasSubstr("stages wait 25%"));     // (2 - 1) / (3 + 2 - 1)
  EXPECT_EQ(Count(svg, "<rect"), 1 + 2 * 2 * 3 + 2);  // the ground, the passes, the legend
}

// A stage that takes longer makes the others wait.
TEST(DrawSchedule, ShowsUnequalStages) {
  const PipelineShape shape = {PipelineSchedule::kZeroBubble, /*stages=*/2, /*micro_batches=*/2};
  const std::string svg = DrawSchedule(shape, {{1, 1, 1}, {3, 3, 3}}, "x");
  EXPECT_THAT(svg, HasSubstr("zero_bubble"));
  EXPECT_EQ(Count(svg, "<rect"), 1 + 2 * 3 * 2 + 3);
  EXPECT_THAT(svg, HasSubstr("stages wait 3"));  // the second stage computes 18 of 19 or 20
}

// Each chunk in a shade of its own.
TEST(DrawSchedule, ShowsChunks) {
  const PipelineShape shape = {PipelineSchedule::kInterleaved, /*stages=*/2, /*micro_batches=*/2,
                               /*chunks=*/2};
  const std::string svg = DrawSchedule(shape, std::vector<PassTimes>(4, {1, 2, 0}), "x");
  EXPECT_THAT(svg, HasSubstr("2 stages, 2 micro-batches, interleaved with 2 chunks"));
  EXPECT_EQ(Count(svg, "<rect"), 1 + 2 * 2 * 2 * 2 + 2 + 2);
  EXPECT_EQ(Count(svg, "fill-opacity"), 2 * 2 * 2 + 1);  // of the second chunk, and its legend
  EXPECT_THAT(svg, HasSubstr("chunk 1"));
}

}  // namespace
}  // namespace milepost::plan
