#include "engine/plan/fit/stage_drafts.h"

#include "absl/strings/str_cat.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/testing/plan_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using ::testing::Each;

constexpr PipelineSchedule kOrdersOfStages[] = {PipelineSchedule::kOneForwardOneBackward,
                                                PipelineSchedule::kZeroBubble};

PlanOptions PipelineOptions(int stages, int64_t micro_batches, PipelineSchedule schedule) {
  PlanOptions options = OptionsOf(2, 1, DType::kF32);
  options.pipeline = stages;
  options.accumulation = micro_batches;
  options.schedule = schedule;
  return options;
}

// The head of 4096 words is the largest of some, the first stage or a middle one of others.
v1::JobSpec SpecOfLayers(int64_t layers, int64_t vocabulary) {
  return SpecOf({.layers = layers, .vocabulary = vocabulary});
}

// Against a draft of every stage.
TEST(StageDrafts, FindsTheLargestStageOfAll) {
  for (const PipelineSchedule schedule : kOrdersOfStages) {
    for (const int64_t vocabulary : {96, 4096}) {
      for (const int stages : {2, 3, 4, 7}) {
        for (const int64_t micro_batches : {1, 3, 12}) {
          SCOPED_TRACE(absl::StrCat(Name(schedule), ", ", stages, " stages, ", micro_batches,
                                    " micro-batches, ", vocabulary, " words"));
          const v1::JobSpec spec = SpecOfLayers(10, vocabulary);
          PlanOptions options = PipelineOptions(stages, micro_batches, schedule);
          const auto draft = DraftPipeline(spec, options);
          ASSERT_TRUE(draft.ok()) << draft.status();
          ASSERT_EQ(draft->like.size(), static_cast<size_t>(stages));
          EXPECT_LE(draft->costs.size(), 4u);
          int64_t most = 0;
          for (options.stage = 0; options.stage < stages; ++options.stage) {
            const auto plan = DraftTraining(spec, options);
            ASSERT_TRUE(plan.ok()) << plan.status();
            const int64_t bytes = RequiredBytes(*plan, LeastBytes(*plan), true);
            EXPECT_LE(bytes, draft->bytes) << "stage " << options.stage;
            most = std::max(most, bytes);
            if (options.stage == draft->largest) {
              EXPECT_EQ(draft->host_bytes, HostBytes(*plan));
            }
          }
          EXPECT_EQ(draft->bytes, most);
          EXPECT_EQ(AtLargestStage(spec, options)->stage, draft->largest);
        }
      }
    }
  }
}

// Of several runs of blocks each.
TEST(StageDrafts, FindsTheLargestInterleavedStage) {
  for (const auto& [stages, chunks] : {std::pair(2, 2), {2, 4}, {3, 2}, {4, 2}}) {
    for (const int64_t vocabulary : {96, 4096}) {
      for (const int64_t micro_batches : {1, 3, 12}) {
        SCOPED_TRACE(absl::StrCat(stages, " stages x ", chunks, ", ", micro_batches,
                                  " micro-batches, ", vocabulary, " words"));
        const v1::JobSpec spec = SpecOfLayers(10, vocabulary);
        PlanOptions options =
            PipelineOptions(stages, micro_batches, PipelineSchedule::kInterleaved);
        options.chunks = chunks;
        const auto draft = DraftPipeline(spec, options);
        ASSERT_TRUE(draft.ok()) << draft.status();
        int64_t most = 0;
        for (options.stage = 0; options.stage < stages; ++options.stage) {
          const auto plan = DraftTraining(spec, options);
          ASSERT_TRUE(plan.ok()) << plan.status();
          most = std::max(most, RequiredBytes(*plan, LeastBytes(*plan), true));
        }
        EXPECT_EQ(draft->bytes, most);
        const auto seconds = draft->Seconds(*BuiltInProfile("cpu"));
        ASSERT_EQ(seconds.size(), static_cast<size_t>(stages));
        EXPECT_EQ(seconds[0].passes.size(), static_cast<size_t>(chunks));
        EXPECT_EQ(TimesOfRuns(seconds).size(), static_cast<size_t>(stages * chunks));
      }
    }
  }
}

// A step is shorter than by 1F1B, by what stages wait less; and longer than what they compute.
TEST(StageDrafts, InterleavedStagesWaitLess) {
  const v1::JobSpec spec = SpecOfLayers(16, 96);
  const DeviceProfile profile = *BuiltInProfile("cpu");
  const auto seconds = [&](PipelineSchedule schedule, int chunks) {
    PlanOptions options = PipelineOptions(4, 8, schedule);
    options.chunks = chunks;
    const auto draft = DraftPipeline(spec, options);
    EXPECT_TRUE(draft.ok()) << draft.status();
    return PipelineSeconds(ShapeOf(options), draft->Seconds(profile));
  };
  const double plain = seconds(PipelineSchedule::kOneForwardOneBackward, 1);
  const double two = seconds(PipelineSchedule::kInterleaved, 2);
  EXPECT_LT(two, 0.93 * plain);
  EXPECT_GT(two, 0.75 * plain);
}

// With a rank's own tokens alone attention would seem to cost a quarter.
TEST(StageDrafts, KnowsWhatContextRanksAttendTo) {
  const v1::JobSpec spec = SpecOf({.layers = 7, .context = 512, .vocabulary = 2048});
  PlanOptions options = PipelineOptions(3, 3, PipelineSchedule::kOneForwardOneBackward);
  options.world = 4;
  options.context = 4;
  options.sequence = 512;
  const auto costs = CostsOfRuns(spec, options);
  const auto draft = DraftPipeline(spec, options);
  ASSERT_TRUE(draft.ok() && costs.ok()) << draft.status() << costs.status();
  int64_t most = 0;
  for (options.stage = 0; options.stage < 3; ++options.stage) {
    const auto plan = DraftTraining(spec, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    most = std::max(most, RequiredBytes(*plan, LeastBytes(*plan), true));
    if (options.stage == 2) continue;  // its head makes gradients in the forward
    double flops = 0;                  // of the micro-batches' forwards
    for (const PlannedOp& op : plan->train.ops) {
      if (op.op.phase == graph::Phase::kForward && op.op.block >= 0) flops += op.flops;
    }
    double expected = 0;
    for (const double block : (*costs)[static_cast<size_t>(options.stage)]) expected += block;
    EXPECT_NEAR(flops / 3, expected, 1e-6 * expected) << "stage " << options.stage;
  }
  EXPECT_EQ(draft->bytes, most);
}

TEST(StageDrafts, SaysWhatEveryStageTakes) {
  const v1::JobSpec spec = SpecOfLayers(10, 4096);
  const DeviceProfile profile = *BuiltInProfile("cpu");
  for (const PipelineSchedule schedule : kOrdersOfStages) {
    PlanOptions options = PipelineOptions(5, 8, schedule);
    const auto draft = DraftPipeline(spec, options);
    ASSERT_TRUE(draft.ok()) << draft.status();
    const std::vector<StageSeconds> seconds = draft->Seconds(profile);
    ASSERT_EQ(seconds.size(), 5u);
    for (options.stage = 0; options.stage < 5; ++options.stage) {
      SCOPED_TRACE(options.stage);
      const auto plan = DraftTraining(spec, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const StageSeconds own = SecondsOfStage(CostsOf(*plan), profile);
      const StageSeconds& found = seconds[static_cast<size_t>(options.stage)];
      for (size_t kind = 0; kind < own.passes[0].size(); ++kind) {
        EXPECT_NEAR(found.passes[0][kind], own.passes[0][kind], 1e-9 * own.passes[0][0]);
      }
      EXPECT_NEAR(found.transfer, own.transfer, 1e-9 * own.transfer);
    }
  }
}

// The stage that the plan is of may be the largest, and not be the slowest.
TEST(StageDrafts, TheSlowestStageDecides) {
  const v1::JobSpec spec = SpecOfLayers(4, 16384);
  const DeviceProfile profile = *BuiltInProfile("cpu");
  PlanOptions options = PipelineOptions(3, 8, PipelineSchedule::kOneForwardOneBackward);
  const auto draft = DraftPipeline(spec, options);
  ASSERT_TRUE(draft.ok()) << draft.status();
  const std::vector<StageSeconds> stages = draft->Seconds(profile);
  std::vector<double> estimates, alike;
  double longest = 0;
  for (options.stage = 0; options.stage < 3; ++options.stage) {
    const auto plan = DraftTraining(spec, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    estimates.push_back(EstimateStage(CostsOf(*plan), profile, stages).seconds);
    alike.push_back(EstimateStep(*plan, profile).seconds);
    const StageSeconds own = SecondsOfStage(CostsOf(*plan), profile);
    longest = std::max(longest, 8 * (own.passes[0][0] + own.passes[0][1]));
  }
  EXPECT_THAT(estimates, Each(testing::DoubleNear(estimates[0], 1e-9 * estimates[0])));
  EXPECT_GT(estimates[0], longest);
  EXPECT_LT(alike[1], longest) << "a middle stage has one layer and no head";
}

TEST(StageDrafts, OfParameterGroupsEveryStageIsDrafted) {
  v1::JobSpec spec = SpecOfLayers(8, 96);
  v1::ParameterGroupSpec* group = spec.mutable_train()->mutable_optimizer()->add_groups();
  group->set_match("*.bias");
  const auto draft =
      DraftPipeline(spec, PipelineOptions(4, 4, PipelineSchedule::kOneForwardOneBackward));
  ASSERT_TRUE(draft.ok()) << draft.status();
  EXPECT_EQ(draft->costs.size(), 4u);
}

}  // namespace
}  // namespace milepost::plan
