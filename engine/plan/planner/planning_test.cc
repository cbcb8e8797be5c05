#include "engine/plan/planning.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/testing/plan_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using testing::HasSubstr;

PlanOptions SizesAndStage(int world, int stage, Recompute recompute, int64_t budget = 0) {
  PlanOptions options = OptionsOf(world, stage, DType::kBf16);
  options.recompute = recompute;
  options.recompute_budget = budget;
  return options;
}

// Between what full recomputation and none need, where most is to be tried.
int64_t Between(const v1::JobSpec& spec, int stage) {
  const auto most = DraftTraining(spec, SizesAndStage(2, stage, Recompute::kNone));
  const auto least = DraftTraining(spec, SizesAndStage(2, stage, Recompute::kFull));
  EXPECT_TRUE(most.ok() && least.ok());
  return (PeakActivationBytes(*most) + 3 * PeakActivationBytes(*least)) / 4;
}

TEST(Planning, WhatIsSaidOnceEndsIt) {
  const v1::JobSpec spec = SpecOf({.layers = 24});
  const PlanOptions options = SizesAndStage(2, 1, Recompute::kBudget, Between(spec, 1));
  int asked = 0;
  Planning whole({}, [&] {
    ++asked;
    return absl::OkStatus();
  });
  ASSERT_TRUE(PlanTraining(spec, options, &whole).ok());
  EXPECT_GT(whole.spent(), 5 * Planning::kWorkBetween);
  EXPECT_GE(asked, whole.spent() / (2 * Planning::kWorkBetween));
  for (int wanted = 0; wanted < asked; ++wanted) {
    int left = wanted;
    Planning planning({}, [&] {
      EXPECT_GE(left, 0) << "asked again after it had said no";
      return left-- > 0 ? absl::OkStatus() : absl::CancelledError("gone");
    });
    const absl::Status status = PlanTraining(spec, options, &planning).status();
    EXPECT_EQ(status, absl::CancelledError("gone"));
    EXPECT_FALSE(planning.exhausted());
    EXPECT_EQ(PlanTraining(spec, options, &planning).status(), status);
  }
}

TEST(Planning, WorkAndOpsAreBounded) {
  const v1::JobSpec spec = SpecOf({.layers = 24});
  const PlanOptions options = SizesAndStage(2, 1, Recompute::kBudget, Between(spec, 1));
  Planning work({.work = 5000});
  const absl::Status too_much = PlanTraining(spec, options, &work).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(too_much.message(), HasSubstr("use fewer layers"));
  EXPECT_TRUE(work.exhausted());
  EXPECT_LT(work.spent(), 7000);
  Planning ops({.ops = 100});
  const absl::Status too_large = PlanTraining(spec, options, &ops).status();
  EXPECT_EQ(too_large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(too_large.message(), HasSubstr("a plan may have 100"));
}

// Sizes of an elastic job: what is known of one stands for the next.
TEST(Planning, WhatSizesShareIsWhatEachWouldFind) {
  const v1::JobSpec spec = SpecOf({.layers = 6});
  for (const int stage : {0, 1, 2, 3}) {
    const int64_t budget = Between(spec, stage);
    Planning shared({});
    for (const int world : {1, 2, 3, 4, 6, 8}) {
      for (const int accumulation : {1, 2}) {
        SCOPED_TRACE(absl::StrCat("stage ", stage, ", ", world, " ranks, ", accumulation));
        PlanOptions options = SizesAndStage(world, stage, Recompute::kBudget, budget);
        options.accumulation = accumulation;
        const auto alone = PlanTraining(spec, options);
        const auto together = PlanTraining(spec, options, &shared);
        ASSERT_EQ(alone.status(), together.status());
        if (!alone.ok()) continue;
        EXPECT_EQ(together->recompute_of_block, alone->recompute_of_block);
        EXPECT_EQ(together->arena_bytes, alone->arena_bytes);
        EXPECT_LE(PeakActivationBytes(*together), budget);
      }
    }
    EXPECT_LE(shared.recomputes().size(), 6u);
  }
}

// Where there are hundreds of blocks their bytes are guessed from each other's: the fewest are
// found all the same.
TEST(Planning, ManyBlocksNeedFewDrafts) {
  const v1::JobSpec spec = SpecOf({.layers = 160, .width = 8, .heads = 1, .context = 16});
  const int64_t budget = Between(spec, 0);
  Planning planning({});
  const auto plan = DraftTraining(spec, SizesAndStage(2, 0, Recompute::kBudget, budget), &planning);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(PeakActivationBytes(*plan), budget);
  const auto graph_ops = static_cast<int64_t>(
      DraftTraining(spec, SizesAndStage(2, 0, Recompute::kNone))->train.graph.ops.size());
  EXPECT_LE(planning.spent(), 14 * graph_ops + Planning::kWorkBetween) << graph_ops;
}

}  // namespace
}  // namespace milepost::plan
