#include "engine/plan/pipeline/stages.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using ::testing::ElementsAre;

TEST(PipelineStages, TheLargestIsAsSmallAsCanBe) {
  EXPECT_THAT(CutEvenly({1, 1, 1, 1}, 2), ElementsAre(0, 0, 1, 1));
  // A head that is as much work as two layers.
  EXPECT_THAT(CutEvenly({0, 1, 1, 1, 1, 2}, 3), ElementsAre(0, 0, 0, 1, 1, 2));
  EXPECT_THAT(CutEvenly({5, 1, 1, 1}, 2), ElementsAre(0, 1, 1, 1));
}

// Also where the largest is given, the others are alike.
TEST(PipelineStages, TheOthersAreAlike) {
  EXPECT_THAT(CutEvenly({9, 1, 1, 1, 1}, 3), ElementsAre(0, 1, 1, 2, 2));
}

TEST(PipelineStages, EachHasABlock) {
  EXPECT_THAT(CutEvenly({0, 0, 0}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(CutEvenly({7, 0, 0}, 3), ElementsAre(0, 1, 2));
}

TEST(PipelineStages, MoreThanBlocksAreRefused) {
  graph::Graph graph;
  graph.blocks = {"a", "b"};
  EXPECT_FALSE(RunsOfBlocks(graph, 3).ok());
}

}  // namespace
}  // namespace milepost::plan
