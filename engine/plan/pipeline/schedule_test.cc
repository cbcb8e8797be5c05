#include "engine/plan/pipeline/schedule.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kOneForwardOneBackward,
                                           PipelineSchedule::kZeroBubble};

std::vector<std::string> Text(const std::vector<Pass>& passes) {
  std::vector<std::string> text;
  for (const Pass& pass : passes) {
    const char* kind = pass.kind == PassKind::kForward    ? "F"
                       : pass.kind == PassKind::kBackward ? "B"
                                                          : "W";
    text.push_back(absl::StrCat(kind, pass.micro_batch));
  }
  return text;
}

TEST(PipelineSchedule, OneForwardOneBackward) {
  const PipelineShape shape = {.stages = 3, .micro_batches = 4};
  EXPECT_THAT(Text(PassesOf(shape, 0)),
              ElementsAre("F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"));
  EXPECT_THAT(Text(PassesOf(shape, 2)),
              ElementsAre("F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"));
}

// Gradients of weights come where there is nothing else to do.
TEST(PipelineSchedule, ZeroBubble) {
  const PipelineShape shape = {PipelineSchedule::kZeroBubble, /*stages=*/2, /*micro_batches=*/3};
  EXPECT_THAT(Text(PassesOf(shape, 1)),
              ElementsAre("F0", "B0", "F1", "B1", "F2", "B2", "W0", "W1", "W2"));
  EXPECT_THAT(Text(PassesOf(shape, 0)),
              ElementsAre("F0", "F1", "F2", "B0", "W0", "B1", "W1", "B2", "W2"));
}

// Each pass once, a micro-batch's in order, and no more micro-batches kept than there are stages
// from this one on.
TEST(PipelineSchedule, EveryStageDoesAllPassesAndKeepsFewMicroBatches) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 1; stages <= 9; ++stages) {
      for (int micro_batches = 1; micro_batches <= 20; ++micro_batches) {
        const PipelineShape shape = {schedule, stages, micro_batches};
        const std::vector<int> in_flight = MostInFlight(shape);
        for (int stage = 0; stage < stages; ++stage) {
          SCOPED_TRACE(absl::StrCat(Name(schedule), ", stage ", stage, " of ", stages, ", ",
                                    micro_batches, " micro-batches"));
          const bool split = schedule == PipelineSchedule::kZeroBubble;
          const std::vector<Pass> passes = PassesOf(shape, stage);
          ASSERT_EQ(passes.size(), (split ? 3 : 2) * micro_batches);
          std::vector<int> done(micro_batches, 0);
          int kept = 0, most = 0, last[3] = {-1, -1, -1};
          for (const Pass& pass : passes) {
            EXPECT_EQ(done[pass.micro_batch]++, static_cast<int>(pass.kind));
            EXPECT_EQ(pass.micro_batch, last[static_cast<int>(pass.kind)] + 1);
            last[static_cast<int>(pass.kind)] = pass.micro_batch;
            kept += pass.kind == PassKind::kForward ? 1 : 0;
            most = std::max(most, kept);
            kept -= pass.kind == (split ? PassKind::kWeights : PassKind::kBackward) ? 1 : 0;
          }
          EXPECT_LE(most, split ? stages + 1 : stages - stage);
          EXPECT_EQ(most, in_flight[stage]);
        }
      }
    }
  }
}

TEST(PipelineSchedule, NobodyWaitsForEver) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 1; stages <= 16; ++stages) {
      for (int micro_batches = 1; micro_batches <= 40; ++micro_batches) {
        EXPECT_EQ(CheckSchedule({schedule, stages, micro_batches}), absl::OkStatus())
            << Name(schedule) << ", " << stages << " stages, " << micro_batches;
      }
    }
    for (const int stages : {17, 31, 48, 63, 64}) {  // as many as there may be
      for (const int micro_batches : {1, 2, 31, 63, 64, 65, 129, 256}) {
        EXPECT_EQ(CheckSchedule({schedule, stages, micro_batches}), absl::OkStatus())
            << Name(schedule) << ", " << stages << " stages, " << micro_batches;
      }
    }
  }
}

TEST(PipelineSchedule, FindsPassesThatWaitForEachOther) {
  std::vector<std::vector<Pass>> passes;
  for (int stage = 0; stage < 3; ++stage)
    passes.push_back(PassesOf({.stages = 3, .micro_batches = 4}, stage));
  EXPECT_EQ(CheckPasses(passes), absl::OkStatus());
  // The first stage wants the second micro-batch's gradient before the first one's.
  auto swapped = passes;
  std::swap(swapped[0][3], swapped[0][5]);
  EXPECT_THAT(CheckPasses(swapped).message(), HasSubstr("stage 0 stops at pass"));
  // It wants a gradient of what it has not sent.
  swapped = passes;
  std::swap(swapped[0][2], swapped[0][3]);
  std::swap(swapped[0][1], swapped[0][2]);
  std::swap(swapped[0][0], swapped[0][1]);
  EXPECT_THAT(CheckPasses(swapped).message(), HasSubstr("wait for each other"));
  // The middle one sends two activations in another order than they are received.
  swapped = passes;
  std::swap(swapped[1][0], swapped[1][1]);
  EXPECT_FALSE(CheckPasses(swapped).ok());
}

// (p - 1) / (m + p - 1) of the time with one forward and one backward in turn: p - 1 of each. The
// paper's H1 waits for p - 1 passes. Up to 4 stages so does what is scheduled here; with more some
// passes wait until a peer takes what was made before.
TEST(PipelineSchedule, IdleShares) {
  for (const auto& [stages, passes] : std::map<int, int>{{2, 1}, {4, 3}, {8, 10}, {16, 24}}) {
    const int micro_batches = 2 * stages;
    const double bubble = stages - 1;
    EXPECT_NEAR(TimeOf({.stages = stages, .micro_batches = micro_batches}).idle_share(),
                bubble / (micro_batches + bubble), 1e-9);
    const PipelineTime zero = TimeOf({PipelineSchedule::kZeroBubble, stages, micro_batches});
    EXPECT_DOUBLE_EQ(zero.step, 3 * micro_batches + passes) << stages;
  }
}

// A forward of 1 and a backward of 2 on each of two stages, and a way of 10 there and back.
TEST(PipelineSchedule, TransfersTakeTheirTime) {
  const PipelineShape shape = {.stages = 2, .micro_batches = 1};
  const auto timeline = TimelineOf(shape, {{1, 2, 0}, {1, 2, 0}}, 10);
  EXPECT_DOUBLE_EQ(timeline[1].front().begin, 1 + 10);
  EXPECT_DOUBLE_EQ(timeline[0].back().begin, 1 + 10 + 1 + 2 + 10);
  EXPECT_DOUBLE_EQ(timeline[0].back().end, 26);
}

// More micro-batches than there are stages and one are in no stage at once.
TEST(PipelineSchedule, LongStepsKeepNoMoreThanShorterOnes) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 2; stages <= 16; ++stages) {
      EXPECT_EQ(MostInFlight({schedule, stages, stages + 2}),
                MostInFlight({schedule, stages, 5 * stages}))
          << Name(schedule) << ", " << stages << " stages";
    }
  }
}

}  // namespace
}  // namespace milepost::plan
